"""`pyengine run -- COMMAND`: start a trainer, watch it, and start it again when it dies."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys

from pyengine import config
from pyengine.supervisor.settings import EXIT_CRASH_LOOP, EXIT_STUCK, START_SECONDS, Settings

_EPILOG = f"""\
exit status: the command's own (128 + signal) where it ended well, was stopped by a signal to
pyengine, or used up its restarts; {EXIT_CRASH_LOOP} a crash loop; {EXIT_STUCK} the command stays,
even after SIGKILL; 126 or 127 it cannot be started; 2 wrong usage
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="start a command, and start it again when it dies or hangs",
        usage="pyengine run [OPTIONS] -- COMMAND ...",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = Settings(())
    add = parser.add_argument
    add("--max-restarts", type=_count, metavar="N", help="give up after N restarts (no limit)")
    add(
        "--hang-timeout",
        type=_seconds,
        metavar="S",
        help="end and restart a command that neither writes nor ticks for S seconds (no limit) ...",
    )
    add(
        "--start-timeout",
        type=_seconds,
        metavar="S",
        help=f"... and before its first tick (the larger of --hang-timeout and {START_SECONDS:g})",
    )
    add(
        "--grace",
        type=_seconds,
        default=config.STOP_GRACE_SECONDS,
        metavar="S",
        help="seconds from the first signal to SIGKILL (%(default)g)",
    )
    add("--run", dest="run_dir", metavar="RUN", help="the run directory; else the trainer tells it")
    add("--log", metavar="FILE", help="where events go, as JSON lines (RUN/supervisor.jsonl)")
    add(
        "--crash-limit",
        type=_count,
        default=defaults.crash_limit,
        metavar="K",
        help="stop after K deaths without a new snapshot (%(default)d) ...",
    )
    add(
        "--crash-window",
        type=_seconds,
        default=defaults.crash_window,
        metavar="S",
        help="... within S seconds (%(default)g)",
    )
    add(
        "--backoff",
        type=_seconds,
        default=defaults.backoff,
        metavar="S",
        help="seconds before a restart; doubles with each death in vain (%(default)g) ...",
    )
    add(
        "--backoff-max",
        type=_seconds,
        default=defaults.backoff_max,
        metavar="S",
        help="... up to S seconds (%(default)g)",
    )
    add(
        "--json",
        action="store_true",
        help="print one JSON object at the end; the command's stdout goes to stderr",
    )
    add("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    parser.set_defaults(run=run_command, parser=parser)


def run_command(options: argparse.Namespace) -> int:
    """Supervise the command; return the exit status that the epilog tells of."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        options.parser.error("say which command: pyengine run -- python train.py")
    if options.crash_limit < 1:
        options.parser.error("--crash-limit must be at least 1")
    # Not before it is needed: other commands start faster without it.
    from pyengine.supervisor.supervise import Supervisor

    wanted = {field.name for field in dataclasses.fields(Settings)} - {"command", "jitter", "stuck"}
    settings = Settings(tuple(command), **{name: getattr(options, name) for name in wanted})
    if settings.log is not None:
        settings = dataclasses.replace(settings, log=os.path.abspath(settings.log))
    sys.stdout.flush()
    summary = Supervisor(settings, (2, 2) if options.json else (1, 2)).run()
    if options.json:
        print(json.dumps(dataclasses.asdict(summary), indent=1))
    return summary.exit_status


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value
