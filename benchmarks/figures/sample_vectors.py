"""Uniform sampling of 256 vector transitions (17 + 6 + 17 float32 and three scalars)."""

from __future__ import annotations

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.race import per_second, rate_race
from benchmarks.rivals import OURS, REPLAYS, ROW_GATHER
from benchmarks.rows import VECTORS

FIGURE = Figure("sample_vectors", "sample(256), 1 million vector transitions, default call")

BATCH = 256
ROWS = 1_000_000
QUICK_ROWS = 50_000
BAR = 2.0


def measure(setting: Setting) -> Measured:
    race = rate_race(
        setting,
        turn="sample",
        rows=VECTORS,
        capacity=QUICK_ROWS if setting.quick else ROWS,
        always=(OURS, ROW_GATHER),
        rivals=REPLAYS,
        unit="rows_per_s",
        score=per_second(BATCH),
        also={"pyengine.tensors": "sample_tensors"},
        count=BATCH,
    )
    return Measured([race.against_best_rival(BAR)], race.samples(), race.facts)
