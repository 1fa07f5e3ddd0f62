"""The command line: `pyengine inspect`, `verify`, `branch`, `gc`, `import`, `export`, `run` and
`bench`.

Exit status: 0 fine, 1 damage was found, 2 wrong usage or nothing could be done; `run` and
`bench` have more.
Results go to stdout, as tables or with `--json` as one JSON object; progress and errors to stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pyengine import __version__
from pyengine.cli import bench, branch, exporting, gc, importing, inspect, run, verify
from pyengine.errors import DamageError, FormatVersionError, MalformedFileError, PyengineError

EXIT_OK = 0
EXIT_DAMAGE = 1
EXIT_TROUBLE = 2


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="pyengine",
        description="Look after the runs of pyengine: their snapshots, and what is left of them.",
    )
    parser.add_argument("--version", action="version", version=f"pyengine {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    inspect.add_command(commands)
    verify.add_command(commands)
    branch.add_command(commands)
    gc.add_command(commands)
    importing.add_command(commands)
    exporting.add_command(commands)
    run.add_command(commands)
    bench.add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    options = build_parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_OK
    except (DamageError, FormatVersionError, MalformedFileError) as error:
        print(f"pyengine: {error}", file=sys.stderr)
        return EXIT_DAMAGE
    except (PyengineError, OSError) as error:
        print(f"pyengine: {error}", file=sys.stderr)
        return EXIT_TROUBLE


if __name__ == "__main__":
    sys.exit(main())
