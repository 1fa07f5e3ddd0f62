"""From restore() until sampling is as quick as it will be, against one sequential read of the rows.

A process restores a 1.4 GB replay with a cold page cache and samples without a pause; the engine's
writer warms and verifies beside it. Full speed begins with the first window of 16 batches that is
not slow: its median, smoothed over five windows, is at most 1.25 x that of the last quarter. Later
ones may be slow, as they are in a warm ring on a machine with hiccups. The read that it is compared
with is the mean of one before and one after. The same with a warm page cache stands beside some of
them. What is drawn over time is the last of each.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.cold import BATCH, prepare, resume
from benchmarks.disk import regular_files, sequential_read_seconds
from benchmarks.figure import Course, Figure, Measured, Setting
from benchmarks.judgement import Finding, Verdict, at_most, format_ratio
from benchmarks.process import held_libraries
from benchmarks.statistics import paired_ratios, summarize

FIGURE = Figure("full_speed", f"restore() to full-speed sample({BATCH}), 1.4 GB replay, cold")

BAR = 1.2
WINDOW = 16
SMOOTHED = 5
SLOW = 1.25
BINS = 60
PAIRS = 14
WARM_EVERY = 4
"""So many of the restores there are, and after every so-manieth one with a warm page cache."""


def measure(setting: Setting) -> Measured:
    run = setting.directory / "run"
    shape = prepare(run, quick=setting.quick)
    segments = [path for path in regular_files(run / "segments") if path.suffix == ".seg"]
    samples: dict[str, list[float]] = {}
    beside: list[float] = []
    courses = {}

    def note(name: str, value: float) -> None:
        samples.setdefault(name, []).append(value)

    reads = samples["sequential_read_s"] = [sequential_read_seconds(segments)]
    for number in range(setting.pairs if setting.quick else max(setting.pairs, PAIRS)):
        watch_seconds = 2 + 4 * reads[-1]
        for state in ("cold",) if number % WARM_EVERY else ("cold", "warm"):
            is_cold = state == "cold"
            with held_libraries():
                result = resume(run, shape, watch_seconds=watch_seconds, is_cold=is_cold)
            ends = np.asarray(result["batch_ends_s"])
            seconds, batch_seconds = full_speed_seconds(ends)
            note(f"{state}_full_speed_s", seconds)
            note(f"{state}_first_batch_ms", result["first_batch_seconds"] * 1e3)
            note(f"{state}_at_full_speed_ms", batch_seconds * 1e3)
            until = 2 * samples["cold_full_speed_s"][-1]
            courses[f"{state}_batches_per_s"] = rate_over_time(ends, until)
            if state == "cold" and result["warmed_s"] is not None:
                note("all_verified_s", result["warmed_s"])
                beside += batches_until(ends, result["warmed_s"])
        reads.append(sequential_read_seconds(segments))
    limits = [(before + after) / 2 for before, after in pairwise(reads)]
    ratios = paired_ratios(samples["cold_full_speed_s"], limits)
    median = summarize(samples["cold_full_speed_s"]).median
    size = sum(path.stat().st_size for path in segments)
    return Measured(
        [
            Finding(
                f"at most {BAR} x one sequential O_DIRECT read of the segment files",
                f"{format_ratio(ratios)}, {median:.2f} s",
                at_most(ratios, BAR),
            ),
            Finding("a batch while the writer warms", told(beside), Verdict.UNJUDGED),
        ],
        samples=samples | {"ratio": ratios},
        facts={"rows": shape.rows, "row_bytes": shape.row_bytes, "segment_bytes": size},
        courses=courses,
    )


def told(seconds: list[float]) -> str:
    if not seconds:
        return "it never ended"
    middle, high = np.percentile(seconds, (50, 99)) * 1e3
    return f"{middle:.1f} ms, p99 {high:.1f} ms"


def rate_over_time(ends: np.ndarray, until: float) -> Course:
    """Return batches a second in equal bins of time, up to `until` seconds after restore()."""
    counts, edges = np.histogram(ends, bins=BINS, range=(0.0, min(until, ends[-1])))
    width = edges[1] - edges[0]
    return Course(list(map(float, edges[1:])), [float(count / width) for count in counts])


def batches_until(ends: np.ndarray, seconds: float) -> list[float]:
    """Return how long each batch but the first took that ended within `seconds`."""
    took: Any = np.diff(ends)[ends[1:] <= seconds]
    return [float(one) for one in took]


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
    fast = np.flatnonzero(smooth <= SLOW * warm)
    return float(ends[fast[0] * WINDOW]), warm
