"""Uniform sampling of 256 Atari transitions: obs and next_obs of 4 x 84 x 84 bytes, 14 MB."""

from __future__ import annotations

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.race import per_second, rate_race
from benchmarks.rivals import OURS, REPLAYS, ROW_GATHER
from benchmarks.rows import STACKS

FIGURE = Figure("sample_stacks", "sample(256), 50,000 Atari transitions of 56 KB, default call")

BATCH = 256
ROWS = 50_000
QUICK_ROWS = 2_000
BAR = 4.0
LIMIT_BAR = 0.7


def measure(setting: Setting) -> Measured:
    race = rate_race(
        setting,
        turn="sample",
        rows=STACKS,
        capacity=QUICK_ROWS if setting.quick else ROWS,
        always=(OURS, ROW_GATHER),
        rivals=REPLAYS,
        unit="rows_per_s",
        score=per_second(BATCH),
        also={"pyengine.tensors": "sample_tensors"},
        count=BATCH,
    )
    findings = [
        race.against_best_rival(BAR),
        race.against(ROW_GATHER.name, LIMIT_BAR, "a C row gather into warm memory"),
    ]
    return Measured(findings, race.samples(), race.facts)
