"""How long the loop stands still for a save of a model with Adam, and when it is durable."""

from __future__ import annotations

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.models import LARGE_LAYERS, LAYER_BYTES
from benchmarks.race import save_race, stall_finding
from benchmarks.rivals import OUR_SAVER, SAVERS

FIGURE = Figure("model_stall", "stall of a save: 403 MB of model + Adam")


def measure(setting: Setting) -> Measured:
    layers = 2 if setting.quick else LARGE_LAYERS
    size = layers * LAYER_BYTES
    setting.need_disk((len(SAVERS) + 3) * size)
    race = save_race(
        setting,
        always=(OUR_SAVER,),
        rivals=SAVERS,
        bytes_each=3 * size,
        make=lambda group: group.each("make_saver", layers=layers, directory="@"),
        state_bytes=size,
    )
    return Measured([stall_finding(race)], race.samples(), race.facts)
