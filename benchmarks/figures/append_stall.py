"""The stall of `tick` due to append fields, and waits in `add` until the commit."""

from __future__ import annotations

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.judgement import Finding, limit
from benchmarks.paired_ticks import paired_ticks
from benchmarks.replay_run import ReplayShape
from benchmarks.statistics import summarize

FIGURE = Figure(
    name="append_stall",
    claim="stall of tick due to append fields, 1e4 to 1e6 rows, waits in add included",
)

BAR_MS = 1.0
FLAT_MS = 0.1
"""Medians of the smallest and the largest ring may differ by this much and still be flat."""

OBS_BYTES = 120
PAIRS = 150
"""Of fewer samples the 99th percentile is the largest, and tells of the machine's one hiccup."""


def measure(setting: Setting) -> Measured:
    sizes = (10_000, 100_000) if setting.quick else (10_000, 100_000, 1_000_000)
    samples: dict[str, list[float]] = {}
    for rows in sizes:
        shape = ReplayShape(rows, OBS_BYTES)
        with paired_ticks(setting.directory, shape) as ticks:
            ticks.warm_up()
            for _ in range(10 if setting.quick else PAIRS):
                ticks.measure()
        samples[f"stall_{rows}_rows_ms"] = ticks.due_to_rows
        samples[f"add_wait_{rows}_rows_ms"] = ticks.waits
        samples[f"whole_tick_{rows}_rows_ms"] = ticks.whole
    medians = [summarize(samples[f"stall_{rows}_rows_ms"]).median for rows in sizes]
    p99 = max(summarize(samples[f"stall_{rows}_rows_ms"]).p99 for rows in sizes)
    text = " / ".join(f"{median:.2f}" for median in medians) + f" ms median; p99 {p99:.2f} ms"
    verdict = limit(reached=p99 < BAR_MS and medians[-1] - medians[0] < FLAT_MS)
    return Measured(
        [Finding("flat, p99 under 1 ms", text, verdict)],
        samples,
        {"rows": list(sizes), "row_bytes": shape.row_bytes},
    )
