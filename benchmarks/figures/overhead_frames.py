"""Training time lost to snapshots: DQN on stacks of frames, a replay of 20,000 (560 MB)."""

from __future__ import annotations

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.overhead import measure_overhead
from benchmarks.rivals import OUR_TRAINED, TRAINED_REPLAYS
from benchmarks.rows import STACKED_FRAMES

FIGURE = Figure("overhead_frames", "training time lost: DQN, 20,000 stacks of frames, 560 MB")

ROWS = 20_000
QUICK_ROWS = 2_500
STEPS = 24
QUICK_STEPS = 8
"""Of a block, where a save takes no longer."""


def measure(setting: Setting) -> Measured:
    rows = QUICK_ROWS if setting.quick else ROWS
    size = rows * STACKED_FRAMES.row_bytes
    setting.need_disk(8 * size)
    return measure_overhead(
        setting,
        "dqn",
        size=rows,
        bytes_each=2 * size,
        steps=QUICK_STEPS if setting.quick else STEPS,
        ours=OUR_TRAINED,
        rivals=TRAINED_REPLAYS,
    )
