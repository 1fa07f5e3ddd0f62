"""`pyengine verify RUN|SNAPSHOT`: read every byte and compare it with the checksums."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyengine.catalog import quarantine
from pyengine.catalog.commit import hold_snapshot
from pyengine.catalog.info import Problem, SnapshotInfo
from pyengine.catalog.run import Run, open_run
from pyengine.catalog.verify import verify_snapshot
from pyengine.cli.progress import progress_bar
from pyengine.cli.words import format_bytes, open_console

_DAMAGE = ("missing", "truncated", "corruption", "malformed", "version")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("verify", help="check every file of a run's snapshots, or of one")
    parser.add_argument("path", help="a run directory or a single snapshot")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--lazy", action="store_true", help="of replay segments read headers and block tables only"
    )
    parser.set_defaults(run=run_verify)


def run_verify(options: argparse.Namespace) -> int:
    """Verify and print; 0 all whole, 1 damage, 2 something could not be read.

    Where no snapshot is left, those that there were are damage: in quarantine, or gone.
    """
    run = open_run(options.path)
    if not run.snapshots:
        lost = quarantine.lost_snapshots(run.path)
        told = (Problem(path, "missing", f"{path}: {reason}") for path, reason in lost)
        run = replace(run, problems=(*run.problems, *told))
    problems: dict[str, list[Problem]] = {}
    for info in run.snapshots:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold_snapshot(info.path) or contextlib.nullcontext())
            except FileNotFoundError:
                continue  # pruned by a living run since we looked
            progress = stack.enter_context(progress_bar(info.name, not options.json))
            problems[info.path] = verify_snapshot(
                info.path, eager=not options.lazy, progress=progress
            )
    if options.json:
        print(json.dumps(_report(run, problems), indent=1))
    else:
        checked = [info for info in run.snapshots if info.path in problems]
        _print_table(checked, problems, run.problems)
    kinds = {problem.kind for found in problems.values() for problem in found}
    kinds.update(problem.kind for problem in run.problems)
    if kinds & set(_DAMAGE):
        return 1
    return 2 if kinds else 0


def _report(run: Run, problems: dict[str, list[Problem]]) -> dict[str, Any]:
    return {
        "path": run.path,
        "run_id": run.run_id,
        "ok": not run.problems and not any(problems.values()),
        "snapshots": [
            {
                "name": info.name,
                "path": info.path,
                "ok": not problems[info.path],
                "size_bytes": info.size_bytes,
                "problems": [problem.to_dict() for problem in problems[info.path]],
            }
            for info in run.snapshots
            if info.path in problems
        ],
        "problems": [problem.to_dict() for problem in run.problems],
    }


def _print_table(
    snapshots: Sequence[SnapshotInfo],
    problems: dict[str, list[Problem]],
    others: Sequence[Problem],
) -> None:
    from rich.table import Column, Table

    console = open_console()
    table = Table(Column("snapshot", overflow="fold"), "files", "size", "result", box=None)
    for info in snapshots:
        found = problems[info.path]
        result = f"[red]{len(found)} problems[/red]" if found else "[green]whole[/green]"
        table.add_row(info.name, f"{len(info.files)}", format_bytes(info.size_bytes), result)
    console.print(table if snapshots else "no snapshots")
    for problem in [*others, *(item for found in problems.values() for item in found)]:
        console.print(f"{problem.kind}: {problem.text}", style="red", markup=False, soft_wrap=True)
