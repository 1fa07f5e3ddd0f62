"""`pyengine export RUN TARGET`: the rows of a ring as an npz file or a Minari dataset."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from pyengine.catalog.run import split_named
from pyengine.cli.progress import progress_bar
from pyengine.errors import ConfigError


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("export", help="write the rows of a ring for other programs")
    add = parser.add_argument
    add("source", help="RUN, RUN@STEP, RUN@latest, or the directory of a snapshot")
    add("target", help="a file FILE.npz, or the id of a Minari dataset: hopper/replay-v0")
    add("--to", dest="format", choices=("minari", "npz"), help="the format (npz by its suffix)")
    add("--ring", metavar="NAME", help="which ring, where there are several")
    add("--env", metavar="ID", help="Gymnasium's environment, for a Minari dataset's spaces")
    add("--force", action="store_true", help="replace what is there")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_export)


def run_export(options: argparse.Namespace) -> int:
    """Write the rows and say what they are."""
    format_ = options.format or ("npz" if options.target.lower().endswith(".npz") else None)
    if format_ is None:
        raise ConfigError(f"{options.target}: say what it is to be: --to npz or --to minari")
    if options.env is not None and format_ != "minari":
        raise ConfigError("--env is for Minari datasets: --to minari")
    run, step = _snapshot(options.source)
    # Not before it is needed: other commands start faster without NumPy and torch.
    from pyengine import porting

    settings: dict[str, Any] = {"ring": options.ring, "step": step, "force": options.force}
    call: Any = porting.export_npz
    if format_ == "minari":
        call, settings["env"] = porting.export_minari, options.env
    with progress_bar("exporting", not options.json, counts_bytes=False) as progress:
        result = call(run, options.target, progress=progress, **settings)
    if options.json:
        print(json.dumps(result.to_dict(), indent=1))
        return 0
    episodes = "" if result.episodes is None else f", {result.episodes} episodes"
    print(f"{result.path}: {result.rows} rows in {result.lanes} lanes{episodes}")
    print(f"from ring {result.ring!r} of {result.snapshot}")
    for note in result.notes:
        print(note)
    return 0


def _snapshot(source: str) -> tuple[str, int | None]:
    """Return the run and the step that RUN@STEP names; a path that is there is a path."""
    if os.path.lexists(source) or "@" not in source:
        return source, None
    named = split_named(source)
    if named is None:
        raise ConfigError(f"{source}: expected RUN@STEP or RUN@latest")
    return named
