"""`pyengine gc RUN`: what dead runs left on the disk, listed or removed."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from pyengine.catalog.garbage import Collection, collect_garbage
from pyengine.cli.progress import progress_bar
from pyengine.cli.words import format_bytes, open_console


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("gc", help="list or remove what dead runs left on the disk")
    parser.add_argument("path", help="a run directory that nobody uses")
    parser.add_argument("--delete", action="store_true", help="remove it; without: list it")
    parser.add_argument(
        "--quarantine", action="store_true", help="what lies in quarantine/ counts as well"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_gc)


def run_gc(options: argparse.Namespace) -> int:
    """Collect and print; 2 where the run is alive or something could not be deleted."""
    with progress_bar("deleting", options.delete and not options.json) as progress:
        found = collect_garbage(
            options.path,
            delete=options.delete,
            with_quarantine=options.quarantine,
            progress=progress,
        )
    if options.json:
        print(json.dumps(_report(options.path, found), indent=1))
    else:
        _print_table(options.path, found)
    return 2 if found.stayed else 0


def _report(path: str, found: Collection) -> dict[str, Any]:
    return {
        "path": os.path.realpath(path),
        "removed": found.is_removed,
        "freed_bytes": found.freed_bytes,
        "items": [item.to_dict() for item in found.items],
        "notes": list(found.notes),
        "stayed": list(found.stayed),
    }


def _print_table(path: str, found: Collection) -> None:
    from rich.markup import escape
    from rich.table import Column, Table

    console = open_console()
    table = Table("kind", "size", "freed", Column("name", overflow="fold"), box=None)
    root = os.path.realpath(path)
    for item in found.items:
        sizes = (format_bytes(item.size_bytes), format_bytes(item.freed_bytes))
        table.add_row(item.kind, *sizes, escape(os.path.relpath(item.path, root)))
    console.print(table if found.items else "nothing is left of dead runs")
    if found.items:
        verb = "removed; freed" if found.is_removed else "would free (--delete removes them)"
        console.print(f"{len(found.items)} names: {verb} {format_bytes(found.freed_bytes)}")
    for note in (*found.notes, *(f"{path} could not be deleted" for path in found.stayed)):
        console.print(note, style="yellow", markup=False, soft_wrap=True)
