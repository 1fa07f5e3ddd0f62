"""Training time lost to snapshots: SAC on vectors, a replay of a million rows."""

from __future__ import annotations

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.overhead import measure_overhead
from benchmarks.rivals import OUR_TRAINED, TRAINED_REPLAYS
from benchmarks.rows import VECTORS

FIGURE = Figure("overhead_vectors", "training time lost: SAC, 1 million vector transitions")

ROWS = 1_000_000
QUICK_ROWS = 50_000
STEPS = 24
QUICK_STEPS = 10
"""Of a block, where a save takes no longer."""


def measure(setting: Setting) -> Measured:
    rows = QUICK_ROWS if setting.quick else ROWS
    size = rows * VECTORS.row_bytes
    setting.need_disk(8 * size)
    return measure_overhead(
        setting,
        "sac",
        size=rows,
        bytes_each=2 * size,
        steps=QUICK_STEPS if setting.quick else STEPS,
        ours=OUR_TRAINED,
        rivals=TRAINED_REPLAYS,
    )
