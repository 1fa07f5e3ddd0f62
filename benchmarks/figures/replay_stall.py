"""How long the loop stands still for a save of a replay of vectors and a model of 1 MB."""

from __future__ import annotations

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.race import save_race, stall_finding
from benchmarks.rivals import OURS, SAVED_REPLAYS
from benchmarks.rows import VECTORS

FIGURE = Figure("replay_stall", "stall of a save: 1 million vector transitions, a model of 1 MB")

ROWS = 1_000_000
QUICK_ROWS = 50_000


def measure(setting: Setting) -> Measured:
    rows = QUICK_ROWS if setting.quick else ROWS
    setting.need_disk((len(SAVED_REPLAYS) + 3) * rows * VECTORS.row_bytes)
    race = save_race(
        setting,
        always=(OURS,),
        rivals=SAVED_REPLAYS,
        bytes_each=2 * rows * VECTORS.row_bytes,
        make=lambda group: (
            group.each("make_replay", rows=VECTORS.name, capacity=rows, directory="@"),
            group.each("fill", count=rows),
        ),
        state_bytes=rows * VECTORS.row_bytes,
    )
    return Measured([stall_finding(race)], race.samples(), race.facts)
