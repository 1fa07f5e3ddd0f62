"""The writer's durable rate, checksums on, against a plain O_DIRECT write and fsync."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from benchmarks.disk import plain_write_seconds, regular_files
from benchmarks.figure import Figure, Measured, Setting
from benchmarks.judgement import Finding, at_least, format_ratio
from benchmarks.replay_run import SETUP_SECONDS, WAIT_SECONDS, ReplayShape, make_engine
from benchmarks.statistics import paired_ratios, summarize

FIGURE = Figure(
    name="writer_rate",
    claim="the writer's durable rate, fsync included, checksums on",
)

BAR = 0.9
SHAPE = ReplayShape(25_000, 28_224)
QUICK_SHAPE = ReplayShape(2_500, 28_224)
SOURCE_BYTES = 64 << 20


def measure(setting: Setting) -> Measured:
    shape = QUICK_SHAPE if setting.quick else SHAPE
    ours, plain, written = [], [], 0
    with mmap.mmap(-1, SOURCE_BYTES) as source:
        source.write(os.urandom(SOURCE_BYTES))
        for pair in range(setting.pairs):
            seconds, written = _persist(shape, setting.directory / f"run-{pair}")
            limit = plain_write_seconds(setting.directory / "plain", written, source)
            ours.append(written / seconds / 1e6)
            plain.append(written / limit / 1e6)
    ratios = paired_ratios(ours, plain)
    return Measured(
        [
            Finding(
                f"at least {BAR} x a plain O_DIRECT write + fsync",
                f"{format_ratio(ratios)}, {summarize(ours).median:.0f} MB/s",
                at_least(ratios, BAR),
            )
        ],
        samples={"writer_MB_per_s": ours, "plain_MB_per_s": plain, "ratio": ratios},
        facts={"bytes": written},
    )


def _persist(shape: ReplayShape, directory: Path) -> tuple[float, int]:
    """Return seconds from tracking a full ring to the commit of its snapshot, and bytes on disk.

    A ring filled before it is tracked has all its segments sealed, so that from the first moment
    the writer has as much to do as it can: that time is its rate. The commit, with its links, its
    manifest and its fsyncs, is inside.
    """
    with shape.make_ring() as ring:
        shape.fill(ring, 0, shape.rows)
        with make_engine(directory) as engine:
            time.sleep(SETUP_SECONDS)
            begin = time.perf_counter()
            engine.track(replay=ring, counters={"step": 0})
            engine.snapshot(1).wait(WAIT_SECONDS)
            seconds = time.perf_counter() - begin
        size = sum(path.stat().st_size for path in regular_files(directory / "segments"))
    for path in regular_files(directory):
        path.unlink()
    return seconds, size
