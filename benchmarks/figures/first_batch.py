"""From an empty buffer to a first sampled batch of what was saved, with the page cache dropped.

Everyone fills and saves its buffer and gives it back. In each round everyone makes an empty one,
the page cache is dropped, libraries apart, and the clock runs from the load to the end of
`sample(256)`. Ours loads
the model of 1 MB too. The rows of the batch are checked after the clock. After three rounds, those
who are far behind the best rival take no more part.
"""

from __future__ import annotations

from typing import Any

from benchmarks.cold import own_files
from benchmarks.contest import Answers, Contest
from benchmarks.disk import DEPTH, drop_page_cache, random_read_rate, regular_files
from benchmarks.figure import Figure, Measured, NotEnough, Setting
from benchmarks.judgement import Finding, Verdict, at_most, format_ratio
from benchmarks.process import held_libraries
from benchmarks.race import ALL_ROUNDS, FAR, Race, near, race_groups
from benchmarks.rivals import OURS, SAVED_REPLAYS, SB3, TIANSHOU, TORCHRL
from benchmarks.rows import FRAMES, VECTORS
from benchmarks.statistics import paired_ratios

FIGURE = Figure("first_batch", "load to a first batch of 256, cold: vectors 170 MB, frames 7 GB")

BATCH = 256
BAR = 20.0
LIMIT_BAR = 2.0
READS = 2_000
LARGE_BYTES = 1e9
LARGE_ROUNDS = 6
LARGE_FAR = 1.2
"""Loads of 7 GB take the rivals up to half a minute each: there are few of them, and in the later
rounds none of those that take a fifth longer than the best."""

HELD_AT_A_LOAD = 2.3
"""TorchRL's, in sizes of its rows, the most of all (2026-11-30)."""

PARTS = (
    (VECTORS, 1_000_000, 50_000, SAVED_REPLAYS, None),
    (FRAMES, 1_000_000, 20_000, (SB3, TIANSHOU, TORCHRL), BAR),
)
"""Rows, full and quick, who takes part, and the bar. Vectors are read in a moment, so that what a
restore costs in any case decides. Frames are loaded from one kind of save a library; cpprb is left
out: it compresses, which takes minutes for 7 GB."""


def measure(setting: Setting) -> Measured:
    findings: list[Finding] = []
    samples: dict[str, list[float]] = {}
    facts: dict[str, Any] = {}
    for rows, full, quick, rivals, bar in PARTS:
        capacity = quick if setting.quick else full
        size = capacity * rows.row_bytes
        race = Race("first_batch_ms", less_is_better=True)
        limits: list[float] = []
        is_large = size > LARGE_BYTES
        rounds = min(setting.pairs, LARGE_ROUNDS) if is_large else setting.pairs
        if is_large:
            setting.pool.disband()
        try:
            setting.need_memory(HELD_AT_A_LOAD * size)
            setting.need_disk(3 * size)
            at_once = max(2, int(0.5 * setting.free_disk_bytes() // size))
            groups = race_groups(setting.part(rows.name), race, (OURS,), rivals, places=at_once - 1)
            for group in groups:
                _save(group, rows.name, capacity)
                limits += _load(group, race, rows.name, capacity, rounds, is_large=is_large)
        except NotEnough as lack:
            findings.append(Finding(rows.name, str(lack), Verdict.SKIPPED))
            continue
        findings.append(race.against_best_rival(bar, f"x the best rival, {rows.name}"))
        if bar is not None:
            ratios = paired_ratios(race.scores[OURS.name], limits)
            needs = f"bytes needed / random 64 KiB read rate at depth {DEPTH}"
            words = f"at most {LIMIT_BAR:g} x ({needs}), {rows.name}"
            findings.append(Finding(words, format_ratio(ratios), at_most(ratios, LIMIT_BAR)))
        samples |= race.samples(f"{rows.name}_")
        samples[f"{rows.name}_random_read_limit_ms"] = limits
        facts |= race.facts
    return Measured(findings, samples, facts)


def _save(group: Contest, rows: str, capacity: int) -> None:
    """Have one after the other make, fill, save and give back its buffer."""
    for name in list(group.contestants):
        steps: tuple[tuple[str, dict[str, Any]], ...] = (
            ("make_replay", {"rows": rows, "capacity": capacity, "directory": "@"}),
            ("fill", {"count": capacity}),
            ("save", {"place": "@/save"}),
            ("close", {}),
        )
        for turn, arguments in steps:
            group.round({name: turn}, **arguments)


def _load(
    group: Contest, race: Race, rows: str, capacity: int, rounds: int, *, is_large: bool
) -> list[float]:
    """Play the rounds; return for each what the disk needs for our batch, in milliseconds."""
    scores: list[dict[str, float]] = []
    limits = []
    names = list(group.contestants)
    run = group.directory_of(OURS.name) / "run"
    segments = [path for path in regular_files(run / "segments") if path.suffix == ".seg"]
    for number in range(rounds):
        rate = random_read_rate(segments, reads=READS, seed=number, depth=DEPTH)
        answers: Answers = {}
        for name in reversed(names) if number % 2 else names:
            group.round({name: "make_replay"}, rows=rows, capacity=capacity, directory="@")
            group.round({name: "get_ready"}, place="@/save")
            if name not in group.contestants:
                continue
            with held_libraries(group.contestants[name].pid):
                drop_page_cache(group.directory_of(name))
                answers |= group.round({name: "load"}, place="@/save", count=BATCH)
            group.round({name: "close"})
        scores.append({name: answer["first_batch_s"] * 1e3 for name, answer in answers.items()})
        needed = answers[OURS.name]["needed_bytes"] + own_files(run)
        limits.append(needed / rate * 1e3)
        if number + 1 == ALL_ROUNDS:
            names = near(scores, race.rivals, names, far=LARGE_FAR if is_large else FAR)
    race.note_group(scores)
    return limits
