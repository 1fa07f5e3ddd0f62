"""Adding one transition a call, as a loop with one environment does."""

from __future__ import annotations

from typing import Any

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.judgement import Finding
from benchmarks.race import per_second, rate_race
from benchmarks.rivals import OURS, REPLAYS
from benchmarks.rows import STACKS, VECTORS

FIGURE = Figure("add_one", "add of one transition: vectors, Atari stacks")

BAR = 3.0
SHAPES = ((VECTORS, 100_000, 20_000), (STACKS, 8_000, 1_000))
"""Rows and capacity, full and quick: buffers are full, so that adding overwrites warm memory."""


def measure(setting: Setting) -> Measured:
    findings: list[Finding] = []
    samples: dict[str, list[float]] = {}
    facts: dict[str, Any] = {}
    for rows, full, quick in SHAPES:
        race = rate_race(
            setting.part(rows.name),
            turn="add",
            rows=rows,
            capacity=quick if setting.quick else full,
            always=(OURS,),
            rivals=REPLAYS,
            unit="rows_per_s",
            score=per_second(1),
        )
        findings.append(race.against_best_rival(BAR, f"x the best rival, {rows.name}"))
        samples |= race.samples(f"{rows.name}_")
        facts |= race.facts
    return Measured(findings, samples, facts)
