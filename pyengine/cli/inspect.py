"""`pyengine inspect RUN`: the snapshots of a run and the contents of the newest, or of one."""

from __future__ import annotations

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

from pyengine.catalog import quarantine, scan
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.markers import restored_snapshots
from pyengine.catalog.rings import RingRecord, read_rings
from pyengine.catalog.run import Run, open_run
from pyengine.catalog.run_record import read_branched_from
from pyengine.cli.words import format_bytes, open_console

if TYPE_CHECKING:
    from rich.console import Console

    from pyengine.format.manifest import ComponentRecord


_SHOWN_RUNS = 8
_NOTE_LENGTH = 400
_COLUMNS = ("component", "kind", "status", "present", "size", "restored into", "files")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("inspect", help="list the snapshots of a run, or show one")
    parser.add_argument("path", help="a run directory or a single snapshot")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_inspect)


def run_inspect(options: argparse.Namespace) -> int:
    """Print what the run holds; 1 where something in it cannot be used."""
    run = open_run(options.path)
    if options.json:
        print(json.dumps(_report(run), indent=1, allow_nan=False))
    else:
        _print_tables(run)
    return 1 if run.problems else 0


def _report(run: Run) -> dict[str, Any]:
    return {
        "path": run.path,
        "run_id": run.run_id,
        "branched_from": read_branched_from(run.path),
        "latest": run.latest.name if run.latest else None,
        "snapshots": [_snapshot_report(info) for info in run.snapshots],
        "restored": sorted(restored_snapshots(run.path)),
        "quarantine": quarantine.snapshot_names(run.path),
        "problems": [problem.to_dict() for problem in run.problems],
    }


def _snapshot_report(info: SnapshotInfo) -> dict[str, Any]:
    metrics = {
        name: value if math.isfinite(value) else repr(value) for name, value in info.metrics.items()
    }
    return {
        **info.to_dict(),
        "metrics": metrics,
        "rings": {ring.name: _ring_report(ring) for ring in read_rings(info)},
    }


def _ring_report(ring: RingRecord) -> dict[str, Any]:
    if ring.error is not None:
        return {"error": ring.error}
    return {
        "rows": ring.row_count,
        "dropped_rows": ring.dropped_rows,
        "dropped": [[run.lane, run.first_row, run.row_count] for run in ring.dropped],
    }


def _print_tables(run: Run) -> None:
    console = open_console()
    console.print(f"run [bold]{run.run_id}[/bold]  {run.path}", soft_wrap=True)
    origin = read_branched_from(run.path)
    if origin is not None:
        words = f"branched from {origin.get('snapshot')} of run {origin.get('run_id')}"
        console.print(words, markup=False, soft_wrap=True)
    if len(run.snapshots) == 1 and scan.has_manifest(run.path):
        _print_snapshot(console, run.snapshots[0])
    elif run.snapshots:
        _print_snapshots(console, run)
        console.print("what a restore goes on from:")
        _print_snapshot(console, _newest(run))
    else:
        console.print("no snapshots")
    moved = quarantine.snapshot_names(run.path)
    if moved:
        shown = ", ".join(moved)
        console.print(f"damaged, in quarantine: {shown}", style="red", markup=False, soft_wrap=True)
    for problem in run.problems:
        console.print(f"{problem.kind}: {problem.text}", style="red", markup=False, soft_wrap=True)


def _newest(run: Run) -> SnapshotInfo:
    """Return the newest snapshot to go on from, else the newest of weights alone."""
    full = [info for info in run.snapshots if not info.is_weights_only]
    return (full or run.snapshots)[-1]


def _print_snapshots(console: Console, run: Run) -> None:
    from rich.table import Column, Table

    table = Table(
        Column("snapshot", overflow="fold"),
        *("step", "line", "created", "size", "saved", "level", "restored"),
        box=None,
    )
    restored = restored_snapshots(run.path)
    for info in run.snapshots:
        saved = sum(component.status == "saved" for component in info.components)
        table.add_row(
            info.name,
            f"{info.global_step}",
            info.line,
            info.created_at,
            format_bytes(info.size_bytes),
            f"{saved} of {len(info.components)}",
            info.level.name + (", milestone" if info.milestone else ""),
            "yes" if info.name in restored else "",
        )
    console.print(table)
    for info in run.snapshots:
        for ring in read_rings(info):
            if ring.dropped:
                text = f"{info.name}: ring {ring.name}: {ring.dropped_rows} rows were dropped"
                console.print(text, style="yellow", markup=False, soft_wrap=True)
    if restored:
        console.print("the newest that was restored stays, beyond the last ones that are kept")


def _print_snapshot(console: Console, info: SnapshotInfo) -> None:
    from rich.markup import escape
    from rich.table import Table

    console.print(f"snapshot {info.name}, step {info.global_step}, line {info.line}")
    console.print(f"parent {info.parent or '-'}, created {escape(info.created_at)}")
    _print_level(console, info)
    table = Table(*_COLUMNS, box=None)
    for component in info.components:
        table.add_row(
            escape(component.name),
            escape(component.kind),
            escape(_status(component)),
            "yes" if component.status == "saved" else "no",
            format_bytes(component.bytes),
            escape(component.type or "-"),
            f"{len(component.files)}",
        )
    console.print(table)
    for ring in read_rings(info):
        _print_ring(console, ring)
    imported = info.notes.get("import")
    if isinstance(imported, dict):
        words = f"imported from {imported.get('source')} ({imported.get('format')})"
        console.print(words, markup=False, soft_wrap=True)
    for name, value in info.metrics.items():
        console.print(f"metric {escape(name)} = {value!r}")
    for name, note in info.notes.items():
        text = f"note {name} = {json.dumps(note)}"
        console.print(text[:_NOTE_LENGTH], markup=False, soft_wrap=True)
    if info.evaluations:
        console.print(f"{info.evaluations} evaluation records")


def _status(component: ComponentRecord) -> str:
    harmless = " (harmless)" if component.harmless else ""
    reason = f": {component.reason}" if component.reason else ""
    return f"{component.status}{harmless}{reason}"


def _print_level(console: Console, info: SnapshotInfo) -> None:
    milestone = ", a milestone" if info.milestone else ""
    console.print(f"level {info.level}{milestone}", markup=False, soft_wrap=True)
    for reason in info.level.reasons:
        console.print(f"  because {reason}", markup=False, soft_wrap=True)
    ran_on = {**info.versions, **info.runtime}
    text = ", ".join(f"{name} {value}" for name, value in ran_on.items())
    console.print(f"made on {text}", markup=False, soft_wrap=True)


def _print_ring(console: Console, ring: RingRecord) -> None:
    text = f"ring {ring.name}: {ring.error or f'{ring.row_count} rows'}"
    if ring.dropped:
        runs = [
            f"{run.first_row} to {run.first_row + run.row_count - 1} of lane {run.lane}"
            for run in ring.dropped[:_SHOWN_RUNS]
        ]
        more = f" and {len(ring.dropped) - _SHOWN_RUNS} runs more"
        text += f"; {ring.dropped_rows} were dropped, their blocks being damaged: rows "
        text += ", ".join(runs) + (more if len(ring.dropped) > _SHOWN_RUNS else "")
    style = "yellow" if ring.dropped or ring.error else None
    console.print(text, style=style, markup=False, soft_wrap=True)
