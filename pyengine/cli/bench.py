"""`pyengine bench`: what snapshots of a state of your size would cost here, in about a minute."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from pyengine.cli.progress import progress_bar
from pyengine.cli.words import format_bytes, open_console
from pyengine.events import logger

if TYPE_CHECKING:
    from pyengine.cli.measure.figures import Figures, Interval, Spread

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RESOLVED_SHARE = 0.02
"""An interval of the lost share that is wider says little."""

_EPILOG = """\
A loop like training (a row, a batch of 64, a step of Adam) runs without an engine, with one, and
with snapshots, in turns. Your steps take another time: lost time is also told per step and per
snapshot. Sizes are such as 100MB, 1.5GB or 64KiB, shapes such as 17 or 4,84,84.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench",
        help="measure what snapshots of your state would cost on this machine",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # Texts, all of them: what is wrong with one is said by an error that says what to do.
    add = parser.add_argument
    add("--env", metavar="ID", help="rows are transitions of this environment of Gymnasium ...")
    add("--obs-shape", metavar="SHAPE", help="... or of observations of this shape")
    add("--obs-dtype", metavar="DTYPE", default="float32", help="their dtype (%(default)s)")
    add("--action-shape", metavar="SHAPE", help="shape of an action, float32 (scalar)")
    add(
        "--model-bytes",
        metavar="SIZE",
        default="10MB",
        help="model and optimizer together (%(default)s)",
    )
    add("--every-steps", metavar="K", required=True, help="a snapshot every K steps")
    add("--steps", metavar="N", help="steps to measure in all (what 40 seconds take)")
    add("--capacity", metavar="N", help="rows of the ring (100,000, or what 500 MB take)")
    add("--dir", metavar="D", default=".", help="where the run would lie (the current directory)")
    add("--json", action="store_true", help="print one JSON object; seconds and bytes")
    parser.set_defaults(run=run_bench)


def run_bench(options: argparse.Namespace) -> int:
    """Measure and print; 128 + signal where a signal ended it, with nothing left behind."""
    # Not before they are needed: other commands start without torch and NumPy.
    from pyengine.cli.measure.measurement import measure
    from pyengine.cli.measure.workload import Workload

    with _ended_by_signals(), _others_kept_off_stdout(), contextlib.ExitStack() as stack:
        workload = Workload.check(
            env=options.env,
            obs_shape=options.obs_shape,
            obs_dtype=options.obs_dtype,
            action_shape=options.action_shape,
            model_bytes=options.model_bytes,
            every_steps=options.every_steps,
            steps=options.steps,
            capacity=options.capacity,
        )
        if workload.env is not None:
            stack.callback(workload.env.close)
        progress = stack.enter_context(
            progress_bar("measuring", not options.json, counts_bytes=False)
        )
        figures = measure(workload, options.dir, progress)
    if options.json:
        print(json.dumps(figures.to_dict(), indent=1))
    else:
        _print_table(figures)
    return 0


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Make the first signal an exception, and later ones nothing: removing takes a moment."""

    def end(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    former = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _others_kept_off_stdout() -> Iterator[None]:
    """Send to stderr what environments print, and log warnings alone."""
    sys.stdout.flush()
    level, own = logger.level, os.dup(1)
    logger.setLevel(logging.WARNING)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(own, 1)
        os.close(own)
        logger.setLevel(level)


def _print_table(figures: Figures) -> None:
    from rich.table import Table

    console = open_console()
    console.print(
        f"{figures.capacity} rows of {format_bytes(figures.row_bytes)}, model and optimizer of "
        f"{format_bytes(figures.state_bytes)}, steps of {_seconds(figures.step_seconds)}; "
        f"{figures.rounds} rounds of 3 x {figures.window_steps} steps"
    )
    table = Table("what", "measured", box=None)
    for what, measured in _lines(figures):
        table.add_row(what, measured)
    console.print(table)
    for note in _notes(figures):
        console.print(note, style="yellow", soft_wrap=True)


def _lines(figures: Figures) -> list[tuple[str, str]]:
    trainer, writer, disk = figures.trainer, figures.writer, figures.disk
    every = f"every {figures.interval_steps} steps"
    lost = figures.lost_share
    return [
        ("stall of a snapshot", _spread(figures.stall_seconds)),
        (
            f"training time lost, a snapshot {every}",
            f"{100 * lost.median:.2f} % ({100 * lost.low:.2f} to {100 * lost.high:.2f})",
        ),
        ("lost per step, the same", _interval(figures.lost_seconds_per_step)),
        ("lost per snapshot", _interval(figures.lost_seconds_per_snapshot)),
        ("until a snapshot is durable", _spread(figures.persist_seconds)),
        ("written per snapshot", _written(figures)),
        ("written per new row", f"{figures.bytes_per_new_row:.0f} B of {figures.row_bytes} B"),
        ("restore, cold", _spread(figures.restore_seconds)),
        ("restore and first batch, cold", _spread(figures.first_batch_seconds)),
        ("memory of the trainer", _memory(trainer.resident_bytes, trainer.shared_bytes)),
        ("memory of the writer", _memory(writer.resident_bytes, writer.shared_bytes)),
        (
            "the disk",
            f"{format_bytes(round(disk.write_bytes_per_second))}/s written and fsynced, "
            f"{format_bytes(round(disk.read_bytes_per_second))}/s read, a small file durable in "
            f"{_seconds(disk.small_file_seconds)}",
        ),
    ]


def _notes(figures: Figures) -> Iterator[str]:
    if figures.lost_share.high - figures.lost_share.low > _RESOLVED_SHARE:
        yield (
            "the lost time is not resolved: other programs use this machine, or the steps differ "
            "much; run it where nothing else runs, or with more --steps"
        )
    if figures.interval_steps > figures.every_steps:
        yield (
            f"a snapshot every {figures.every_steps} steps is more than this disk takes: they "
            f"follow on one another every {figures.interval_steps} steps"
        )
    if figures.budget_steps > figures.every_steps:
        yield (
            f"with its default budget=0.1 an engine takes one every {figures.budget_steps} steps "
            "of this length, not more often"
        )
    if figures.unfinished:
        yield (
            f"{figures.unfinished} of {figures.rounds} snapshots were not durable when their "
            "window ended, so that a part of the lost time is missing: give more --steps"
        )


def _written(figures: Figures) -> str:
    return f"{format_bytes(figures.bytes_per_snapshot)}, {figures.new_rows} new rows in it"


def _memory(resident_bytes: int, shared_bytes: int) -> str:
    return f"{format_bytes(resident_bytes)}, {format_bytes(shared_bytes)} of it shared"


def _spread(spread: Spread) -> str:
    high = "p99" if spread.count >= 100 else f"largest of {spread.count}"
    return f"{_seconds(spread.p50)}, {high} {_seconds(spread.p99)}"


def _interval(interval: Interval) -> str:
    low, high = _seconds(interval.low), _seconds(interval.high)
    return f"{_seconds(interval.median)} ({low} to {high})"


def _seconds(value: float) -> str:
    size = abs(value)
    if size < 1e-3:
        return f"{value * 1e6:.1f} us"
    return f"{value * 1e3:.2f} ms" if size < 1 else f"{value:.2f} s"
