"""`pyengine import FILE NEW`: a new run that holds the rows of another library's replay buffer."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from pyengine.cli.progress import progress_bar
from pyengine.errors import ConfigError

_SUFFIXES = {
    ".npz": "npz",
    ".pkl": "sb3",
    ".pickle": "sb3",
    ".h5": "tianshou",
    ".hdf5": "tianshou",
}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("import", help="begin a new run with the rows of a replay buffer")
    add = parser.add_argument
    add("source", help="an npz file, SB3's pickle, or the HDF5 file of Tianshou's save_hdf5")
    add("new", help="the new run directory; must not exist, or be empty")
    formats = sorted(set(_SUFFIXES.values()))
    add("--from", dest="format", choices=formats, help="what the source is (by its suffix)")
    add("--ring", default="replay", metavar="NAME", help="what the ring is called (%(default)s)")
    add("--capacity", type=int, metavar="N", help="of the ring, in rows over all lanes")
    add("--step", type=int, default=0, metavar="N", help="of the snapshot (%(default)s)")
    add(
        "--rename",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="give an array of an npz file another name; may be repeated",
    )
    add(
        "--allow-pickle",
        action="store_true",
        help="read SB3's pickle, which runs code of whoever wrote it: for files of your own",
    )
    add(
        "--without-priorities",
        action="store_true",
        help="of Tianshou's prioritised buffers take the rows alone",
    )
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_import)


def run_import(options: argparse.Namespace) -> int:
    """Bring the rows in and say what they are."""
    format_ = options.format or _SUFFIXES.get(os.path.splitext(options.source)[1].lower())
    if format_ is None:
        raise ConfigError(
            f"{options.source}: its suffix does not tell what it is: --from npz, sb3 or tianshou"
        )
    # Not before it is needed: other commands start faster without NumPy and torch.
    from pyengine import porting

    settings: dict[str, Any] = {
        "ring": options.ring,
        "capacity": options.capacity,
        "step": options.step,
    }
    call: Any
    if format_ == "npz":
        call = porting.import_npz
        settings["rename"] = dict(map(_renaming, options.rename))
    elif format_ == "sb3":
        call, settings["allow_pickle"] = porting.import_sb3, options.allow_pickle
    else:
        call = porting.import_tianshou
        settings["without_priorities"] = options.without_priorities
    with progress_bar("importing", not options.json, counts_bytes=False) as progress:
        result = call(options.source, options.new, progress=progress, **settings)
    if options.json:
        print(json.dumps(result.to_dict(), indent=1))
        return 0
    print(f"{result.path}: {result.rows} rows in {result.lanes} lanes, ring {result.ring!r}")
    print(f"fields: {', '.join(result.fields)}")
    for note in result.notes:
        print(note)
    print("it holds the ring alone: a script takes it with engine.restore(allow=[...])")
    return 0


def _renaming(text: str) -> tuple[str, str]:
    old, separator, new = text.partition("=")
    if not separator or not old or not new:
        raise ConfigError(f"--rename: expected OLD=NEW, got {text!r:.100}")
    return old, new
