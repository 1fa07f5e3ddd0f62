"""Uniform sampling of 256 vector transitions (17 + 6 + 17 float32 and three scalars)."""

from __future__ import annotations

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.race import sample_race
from benchmarks.rows import VECTORS

FIGURE = Figure("sample_vectors", "sample(256), 1 million vector transitions, default call")

BATCH = 256
ROWS = 1_000_000
QUICK_ROWS = 50_000
BAR = 2.0


def measure(setting: Setting) -> Measured:
    race = sample_race(setting, VECTORS, QUICK_ROWS if setting.quick else ROWS, BATCH)
    return Measured([race.against_best_rival(BAR)], race.samples(), race.facts)
