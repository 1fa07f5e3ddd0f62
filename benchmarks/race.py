"""Races: what all contests have in common. Ours and the limits run against every installed rival.

Where all contestants would not fit into memory at once, they run in groups, ours and the limits in
each of them. A ratio is always of two turns of one round: ours over the other's, or the other's
over ours where less is better. So more is better for us in every ratio.
"""

from __future__ import annotations

import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contest import Answers, Contest
from benchmarks.disk import plain_write_seconds
from benchmarks.figure import Setting, unit_of
from benchmarks.host import available_memory_bytes
from benchmarks.judgement import Finding, Verdict, at_least, format_ratio
from benchmarks.rivals import OURS, REPLAYS, ROW_GATHER, Rival
from benchmarks.rows import Rows
from benchmarks.statistics import summarize

MEMORY_BYTES = 14e9
"""What the contestants of one group may hold together."""

PROCESS_BYTES = 0.4e9
"""An interpreter with torch and what comes with it."""

SOURCE_BYTES = 64 << 20

FREED_ROUNDS = 6

SLOW_SECONDS = 5.0
SLOW_ROUNDS = 3
"""A save that takes longer than this is made in so many rounds, not in all."""

ALL_ROUNDS = 3
FAR = 2.0
"""After so many rounds those who need so many times what the best rival does take no more part."""


@dataclass
class Race:
    """What came out: by contestant, one value a round in each list."""

    unit: str
    less_is_better: bool = False
    rivals: list[str] = field(default_factory=list)
    scores: dict[str, list[float]] = field(default_factory=dict)
    details: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def note_group(self, rounds: Sequence[dict[str, float]], ours: str = OURS.name) -> None:
        """Take in the scores of one group's rounds, each paired with ours of its round."""
        for scores in rounds:
            for label, score in scores.items():
                self.scores.setdefault(label, []).append(score)
                if label != ours:
                    ratio = score / scores[ours]
                    ratio = ratio if self.less_is_better else 1 / ratio
                    self.ratios.setdefault(label, []).append(ratio)

    def note(self, name: str, value: float) -> None:
        """Take in a value that nothing is judged by."""
        self.details.setdefault(name, []).append(value)

    def against_best_rival(
        self, bar: float | None, words: str = "x the best rival", names: Sequence[str] = ()
    ) -> Finding:
        """Judge the ratio to the rival that comes closest, of all or of these `names`; without a
        bar just tell it."""
        bar_text = "none" if bar is None else f"at least {bar:g} {words}"
        raced = [name for name in names or self.rivals if name in self.ratios]
        if not raced:
            text = no_rival(self.rivals)
            return Finding(bar_text, text, Verdict.SKIPPED)
        closest = min(raced, key=lambda name: summarize(self.ratios[name]).median)
        ratios = self.ratios[closest]
        verdict = Verdict.UNJUDGED if bar is None else at_least(ratios, bar)
        return Finding(bar_text, f"{format_ratio(ratios)} against {closest}; {self.own()}", verdict)

    def against(self, name: str, bar: float, words: str) -> Finding:
        """Judge the ratio to one contestant, a limit."""
        ratios = self.ratios[name]
        bar_text = f"at least {bar:g} x {words}"
        return Finding(bar_text, f"{format_ratio(ratios)}; {self.own()}", at_least(ratios, bar))

    def own(self) -> str:
        median = summarize(self.scores[OURS.name]).median
        return f"{_rounded(median)} {unit_of(f'_{self.unit}').replace('_per_', '/')}"

    def samples(self, prefix: str = "") -> dict[str, list[float]]:
        """Return all samples, named for tables and pictures: unit last."""
        named = {f"{prefix}{name}_{self.unit}": values for name, values in self.scores.items()}
        named |= {f"{prefix}{name}": values for name, values in self.details.items()}
        kind = "over_pyengine" if self.less_is_better else "under_pyengine"
        for name, values in self.ratios.items():
            named[f"{prefix}{name}_{kind}_ratio"] = values
        return named


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def near(
    rounds: Sequence[dict[str, float]],
    rivals: Sequence[str],
    names: Sequence[str],
    *,
    far: float = FAR,
) -> list[str]:
    """Return which of `names` go on where less is better: ours, limits, and the rivals that are not
    far behind the best of them."""
    medians = {
        name: summarize([scores[name] for scores in rounds if name in scores]).median
        for name in names
        if name in rivals and name in rounds[-1]
    }
    most = far * min(medians.values(), default=0.0)
    return [name for name in names if name not in rivals or medians.get(name, most + 1) <= most]


def no_rival(names: Sequence[str]) -> str:
    """Return why nothing was raced against, though there are installed rivals of these names."""
    if names:
        return f"all rivals failed: {', '.join(names)}"
    return "no rival is installed: make bench installs the extra `rivals`"


def installed(rivals: Sequence[Rival]) -> list[Rival]:
    """Return those of `rivals` that are installed; say which are not."""
    for rival in rivals:
        if not rival.is_installed:
            needs = ", ".join(rival.needs)
            print(f"left out: {rival.name}: {needs} not installed", file=sys.stderr)
    return [rival for rival in rivals if rival.is_installed]


def places_in_memory(setting: Setting, always: Sequence[Rival], bytes_each: float) -> int:
    """Return how many rivals fit beside `always` where each holds `bytes_each` at once."""
    each = bytes_each + PROCESS_BYTES
    setting.need_memory((len(always) + 1) * each)
    return int(min(MEMORY_BYTES, available_memory_bytes()) // each) - len(always)


def race_groups(
    setting: Setting,
    race: Race,
    always: Sequence[Rival],
    rivals: Sequence[Rival],
    *,
    places: int,
) -> Iterator[Contest]:
    """Yield one running contest after the other, each with `always` and up to `places` rivals.

    The files of a group are removed before the next one starts.
    """
    present = installed(rivals)
    race.rivals = [rival.name for rival in present]
    race.facts["guarantees"] = {r.name: r.guarantee for r in (*always, *present) if r.guarantee}
    for first in range(0, max(1, len(present)), places):
        group = [*always, *present[first : first + places]]
        directory = setting.directory / f"group-{first}"
        with setting.pool.contest(group, directory) as started:
            yield started
        race.facts.setdefault("failures", {}).update(started.failures)
        shutil.rmtree(directory)


def rate_race(
    setting: Setting,
    *,
    turn: str,
    rows: Rows,
    capacity: int,
    always: Sequence[Rival],
    rivals: Sequence[Rival],
    unit: str,
    score: Callable[[dict[str, Any]], float],
    also: dict[str, str] | None = None,
    freed_bytes: int = 0,
    **arguments: Any,
) -> Race:
    """Race over one repeated turn on full buffers of `capacity` rows.

    `score` makes a rate out of an answer. `also` names second turns of ours ("pyengine.what").
    Buffers are filled and their rows checked before the first round, which is a warm-up. With
    `freed_bytes` everyone frees a block of that size then, and some more rounds give scores by the
    names of `recycling`.
    """
    race = Race(unit)
    arguments["seconds"] = setting.turn_seconds
    places = places_in_memory(setting, always, capacity * rows.row_bytes)
    for group in race_groups(setting, race, always, rivals, places=places):
        group.each("make_replay", rows=rows.name, capacity=capacity, directory="@")
        group.each("fill", count=capacity)
        if turn != "extend":
            group.each("check", count=256)
        turns = dict.fromkeys(group.contestants, turn) | (also or {})
        _play(group, race, turns, setting.pairs, score, arguments)
        if freed_bytes:
            group.each("free_a_block", size=freed_bytes)
            others = [name for name in group.contestants if name in race.rivals]
            turns = {OURS.name: turn} | {recycling(name): turn for name in others}
            _play(group, race, turns, min(setting.pairs, FREED_ROUNDS), score, arguments)
    return race


def recycling(name: str) -> str:
    """Return the label of a contestant's scores once its allocator recycles what a call frees."""
    return f"{name}.recycling"


def _play(
    group: Contest,
    race: Race,
    turns: dict[str, str],
    count: int,
    score: Callable[[dict[str, Any]], float],
    arguments: dict[str, Any],
) -> None:
    """Play a warm-up and `count` rounds of these turns; take in their scores."""
    rounds = []
    for number in range(count + 1):
        answers = group.round(turns, backwards=bool(number % 2), **arguments)
        if number:
            rounds.append({label: score(answer) for label, answer in answers.items()})
            for label, answer in answers.items():
                race.note(f"{label}_p99_us", answer["p99_us"])
                race.note(f"{label}_faults_per_call", answer["faults_per_call"])
    race.note_group(rounds)


def sample_race(
    setting: Setting, rows: Rows, capacity: int, batch: int, *, freed_bytes: int = 0
) -> Race:
    """Return the race of default calls of `sample(batch)`, and of ours into tensors.

    Everyone's process is new: how quick fresh memory is depends on what it has freed before.
    """
    setting.pool.disband()
    return rate_race(
        setting,
        turn="sample",
        rows=rows,
        capacity=capacity,
        always=(OURS, ROW_GATHER),
        rivals=REPLAYS,
        unit="rows_per_s",
        score=per_second(batch),
        also={"pyengine.tensors": "sample_tensors"},
        freed_bytes=freed_bytes,
        count=batch,
    )


def per_second(units_each: float) -> Callable[[dict[str, Any]], float]:
    """Return a score: units a second where every call moves `units_each`."""
    return lambda answer: answer["calls"] * units_each / answer["seconds"]


def save_race(
    setting: Setting,
    *,
    always: Sequence[Rival],
    rivals: Sequence[Rival],
    bytes_each: float,
    make: Callable[[Contest], object],
    state_bytes: int,
) -> Race:
    """Race over the stall of a save; beside it when the save is complete, and when durable.

    In each round a plain O_DIRECT write and fsync of as many bytes is timed too. The first round
    warms up: files and staging memory are made in it.
    """
    race = Race("stall_ms", less_is_better=True)
    places = places_in_memory(setting, always, bytes_each)
    for group in race_groups(setting, race, always, rivals, places=places):
        make(group)
        turns = dict.fromkeys(group.contestants, "save")
        rounds: list[dict[str, float]] = []
        with mmap.mmap(-1, SOURCE_BYTES) as source:
            source.write(os.urandom(SOURCE_BYTES))
            for number in range(setting.pairs + 1):
                place = f"@/save-{number}"
                answers = group.round(turns, backwards=bool(number % 2), place=place)
                plain = plain_write_seconds(setting.directory / "plain", state_bytes, source)
                group.round(dict.fromkeys(answers, "forget"), place=place)
                if number == SLOW_ROUNDS:
                    for name in _slow(answers):
                        del turns[name]
                if number:
                    rounds.append({name: a["stall_s"] * 1e3 for name, a in answers.items()})
                    race.note("plain_write_durable_ms", plain * 1e3)
                    for name, answer in answers.items():
                        race.note(f"{name}_complete_ms", answer["complete_s"] * 1e3)
                        race.note(f"{name}_durable_ms", answer["durable_s"] * 1e3)
        race.note_group(rounds)
    return race


def _slow(answers: Answers) -> list[str]:
    """Return the rivals that saved for so long; ours goes on, as the others are paired with it."""
    took = {name: answer["durable_s"] for name, answer in answers.items() if name != OURS.name}
    return [name for name, seconds in took.items() if seconds > SLOW_SECONDS]


def stall_finding(race: Race) -> Finding:
    """Tell the stall against the rival with the shortest, and when ours is durable."""
    found = race.against_best_rival(None)
    durable = summarize(race.details[f"{OURS.name}_durable_ms"]).median
    return Finding(found.bar, f"{found.text}, durable after {durable:.0f} ms", found.verdict)
