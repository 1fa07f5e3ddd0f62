"""Adding 1 MB of transitions a call, against one memcpy a field of the same bytes."""

from __future__ import annotations

from typing import Any

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.judgement import Finding
from benchmarks.race import rate_race
from benchmarks.rivals import CPPRB, MEMCPY, OURS, TORCHRL, TORCHRL_MEMMAP
from benchmarks.rows import STACKS, VECTORS

FIGURE = Figure("extend", "extend by 1 MB of rows a call: vectors, Atari stacks")

BAR = 0.7
CALL_BYTES = 1 << 20
SHAPES = ((VECTORS, 1_000_000, 50_000), (STACKS, 8_000, 1_000))
"""Rows and capacity, full and quick: buffers are full, so that memory is warm for everybody."""


def measure(setting: Setting) -> Measured:
    findings: list[Finding] = []
    samples: dict[str, list[float]] = {}
    facts: dict[str, Any] = {}
    for rows, full, quick in SHAPES:
        race = rate_race(
            setting.part(rows.name),
            turn="extend",
            rows=rows,
            capacity=quick if setting.quick else full,
            always=(OURS, MEMCPY),
            rivals=(TORCHRL, TORCHRL_MEMMAP, CPPRB),
            unit="MB_per_s",
            score=lambda answer: answer["calls"] * answer["bytes"] / answer["seconds"] / 1e6,
            bytes_each=CALL_BYTES,
        )
        findings.append(race.against(MEMCPY.name, BAR, f"memcpy, {rows.name}"))
        findings.append(race.against_best_rival(None))
        samples |= race.samples(f"{rows.name}_")
        facts |= race.facts
    return Measured(findings, samples, facts)
