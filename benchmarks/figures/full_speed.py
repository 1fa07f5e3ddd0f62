"""From restore() until sampling is as quick as it will be, against one sequential read of the rows.

A process restores a 1.4 GB replay with a cold page cache and samples without a pause; the engine's
writer warms and verifies beside it. Full speed is reached after the last window of 32 batches that
is slow: its median, smoothed over five windows against hiccups of the machine, is more than 1.25 x
that of the last quarter.
"""

from __future__ import annotations

import numpy as np

from benchmarks.cold import BATCH, prepare, resume
from benchmarks.disk import regular_files, sequential_read_seconds
from benchmarks.figure import Figure, Measured, Setting
from benchmarks.judgement import Finding, at_most, format_ratio
from benchmarks.statistics import paired_ratios, summarize

FIGURE = Figure("full_speed", f"restore() to full-speed sample({BATCH}), 1.4 GB replay, cold")

BAR = 1.2
WINDOW = 32
SMOOTHED = 5
SLOW = 1.25


def measure(setting: Setting) -> Measured:
    run = setting.directory / "run"
    shape = prepare(run, quick=setting.quick)
    segments = [path for path in regular_files(run / "segments") if path.suffix == ".seg"]
    times, limits, warm = [], [], []
    for _ in range(setting.pairs):
        limits.append(sequential_read_seconds(segments))
        result = resume(run, shape, watch_seconds=2 + 4 * limits[-1])
        seconds, batch_seconds = full_speed_seconds(np.asarray(result["batch_ends_s"]))
        times.append(seconds)
        warm.append(batch_seconds * 1e3)
    ratios = paired_ratios(times, limits)
    size = sum(path.stat().st_size for path in segments)
    return Measured(
        [
            Finding(
                f"at most {BAR} x one sequential O_DIRECT read of the segment files",
                f"{format_ratio(ratios)}, {summarize(times).median:.2f} s",
                at_most(ratios, BAR),
            )
        ],
        samples={
            "full_speed_s": times, "sequential_read_s": limits, "ratio": ratios,
            "warm_batch_ms": warm,
        },
        facts={"rows": shape.rows, "row_bytes": shape.row_bytes, "segment_bytes": size},
    )  # fmt: skip


def full_speed_seconds(ends: np.ndarray) -> tuple[float, float]:
    """Return when full speed began, in the clock of `ends` (the end of each batch, in seconds from
    the call of restore), and the seconds of a batch at full speed.
    """
    took = np.diff(ends)
    warm = float(np.median(took[-len(took) // 4 :]))
    count = len(took) // WINDOW
    windows = np.median(took[: count * WINDOW].reshape(count, WINDOW), axis=1)
    padded = np.pad(windows, SMOOTHED // 2, mode="edge")
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, SMOOTHED), axis=1)
    slow = np.flatnonzero(smooth > SLOW * warm)
    last = (slow[-1] + 1) * WINDOW if len(slow) else 0
    return float(ends[last]), warm
