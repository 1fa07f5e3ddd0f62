"""Training time lost to snapshots: a model of 100 MB with its Adam, no replay."""

from __future__ import annotations

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.models import LAYER_BYTES
from benchmarks.overhead import measure_overhead
from benchmarks.rivals import OUR_SAVER, SAVERS

FIGURE = Figure("overhead_model", "training time lost: 100 MB of model + Adam")

LAYERS = 2
QUICK_LAYERS = 1
STEPS = 8
QUICK_STEPS = 3
"""Of a block, where a save takes no longer."""


def measure(setting: Setting) -> Measured:
    layers = QUICK_LAYERS if setting.quick else LAYERS
    size = layers * LAYER_BYTES
    setting.need_disk((len(SAVERS) + 3) * size)
    return measure_overhead(
        setting,
        "model",
        size=layers,
        steps=QUICK_STEPS if setting.quick else STEPS,
        bytes_each=4 * size,
        ours=OUR_SAVER,
        rivals=SAVERS,
    )
