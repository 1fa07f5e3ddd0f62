"""Uniform sampling of 256 Atari transitions: obs and next_obs of 4 x 84 x 84 bytes, 14 MB."""

from __future__ import annotations

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.race import sample_race
from benchmarks.rivals import ROW_GATHER
from benchmarks.rows import STACKS

FIGURE = Figure("sample_stacks", "sample(256), 50,000 Atari transitions of 56 KB, default call")

BATCH = 256
ROWS = 50_000
QUICK_ROWS = 2_000
BAR = 4.0
LIMIT_BAR = 0.7


def measure(setting: Setting) -> Measured:
    race = sample_race(setting, STACKS, QUICK_ROWS if setting.quick else ROWS, BATCH)
    findings = [
        race.against_best_rival(BAR),
        race.against(ROW_GATHER.name, LIMIT_BAR, "a C row gather into warm memory"),
    ]
    return Measured(findings, race.samples(), race.facts)
