"""Uniform sampling of 256 Atari transitions: obs and next_obs of 4 x 84 x 84 bytes, 14 MB.

Most rivals allocate a batch at each call. By default glibc gives blocks of this size back to the
kernel when they are freed, and page faults are most of what a call costs; in a process that has
once freed a larger block, as a convolution on the CPU does (28.9 MB: this batch's obs as float32),
it recycles them, and everyone is at the memory's speed. Both are told; the bar speaks of the first.
"""

from __future__ import annotations

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.race import recycling, sample_race
from benchmarks.rivals import ROW_GATHER
from benchmarks.rows import STACKS

FIGURE = Figure("sample_stacks", "sample(256), 50,000 Atari transitions of 56 KB, default call")

BATCH = 256
ROWS = 50_000
QUICK_ROWS = 2_000
BAR = 4.0
LIMIT_BAR = 0.7
FREED_BYTES = BATCH * 4 * 84 * 84 * 4


def measure(setting: Setting) -> Measured:
    rows = QUICK_ROWS if setting.quick else ROWS
    race = sample_race(setting, STACKS, rows, BATCH, freed_bytes=FREED_BYTES)
    names = [recycling(name) for name in race.rivals]
    findings = [
        race.against_best_rival(BAR),
        race.against_best_rival(None, names=names),
        race.against(ROW_GATHER.name, LIMIT_BAR, "a C row gather into warm memory"),
    ]
    return Measured(findings, race.samples(), race.facts)
