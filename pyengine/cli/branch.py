"""`pyengine branch RUN@STEP NEW`: a new run that begins with one snapshot of another."""

from __future__ import annotations

import argparse
import json

from pyengine.catalog.branch import Branch, branch_run
from pyengine.cli.progress import progress_bar
from pyengine.cli.words import format_bytes


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("branch", help="begin a new run with one snapshot of another")
    parser.add_argument("source", help="RUN@STEP, RUN@latest, or the directory of a snapshot")
    parser.add_argument("new", help="the new run directory; must not exist, or be empty")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_branch)


def run_branch(options: argparse.Namespace) -> int:
    """Make the branch and say what it was made of."""
    with progress_bar("branching", not options.json) as progress:
        branch = branch_run(options.source, options.new, progress=progress)
    if options.json:
        print(json.dumps(branch.to_dict(), indent=1))
    else:
        _print_branch(branch)
    return 0


def _print_branch(branch: Branch) -> None:
    print(f"{branch.path}: run {branch.run_id}, from {branch.source}")
    shared, copied = format_bytes(branch.linked_bytes), format_bytes(branch.copied_bytes)
    print(f"{shared} are shared with run {branch.source_run_id}, {copied} were copied")
    if branch.passed_over:
        print(
            f"step {branch.global_step} was saved more than once: the newest was taken, not "
            + ", ".join(branch.passed_over)
        )
    print("a script with this run directory goes on from there")
