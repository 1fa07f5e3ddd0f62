"""Prioritized sampling of 256 vector transitions and the update of their priorities: one step."""

from __future__ import annotations

import sys

import pyengine
from benchmarks.figure import Figure, Measured, Setting
from benchmarks.race import per_second, rate_race
from benchmarks.rivals import CPPRB_PRIORITIZED, OUR_PRIORITIZED
from benchmarks.rows import VECTORS

FIGURE = Figure("prioritized", "sample(256) by priority + update, 1 million vector transitions")

BATCH = 256
ROWS = 1_000_000
QUICK_ROWS = 50_000
BAR = 2.0


def measure(setting: Setting) -> Measured:
    if not hasattr(pyengine, "PrioritizedReplayBuffer"):
        why = "pyengine has no PrioritizedReplayBuffer"
        print(f"prioritized: skipped: {why}", file=sys.stderr)
        return Measured.skipped(why)
    race = rate_race(
        setting,
        turn="prioritized",
        rows=VECTORS,
        capacity=QUICK_ROWS if setting.quick else ROWS,
        always=(OUR_PRIORITIZED,),
        rivals=(CPPRB_PRIORITIZED,),
        unit="rows_per_s",
        score=per_second(BATCH),
        count=BATCH,
    )
    return Measured([race.against_best_rival(BAR, "x cpprb")], race.samples(), race.facts)
