"""What saving costs a training loop: the race of the figures of overhead.

Everyone trains the same learner from the same seed, on a buffer of its own, in pairs of blocks with
and without a save (benchmarks.training). The time that a pair loses, over the time that an interval
of so many steps takes, is the share of training time lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.contest import Answers, Contest
from benchmarks.figure import Measured, Setting
from benchmarks.judgement import Finding, Verdict, at_most
from benchmarks.race import ALL_ROUNDS, Race, near, no_rival, places_in_memory, race_groups
from benchmarks.rivals import Rival
from benchmarks.statistics import summarize

INTERVAL = 2_000
OTHER_INTERVALS = (500, 10_000)
"""Steps between two saves: what the bars speak of, and what is told beside it, of ours alone; the
others' saves cost what they cost, whatever has changed."""

BAR_PERCENT = 1.0
BAR_SHARE = 20.0
"""At most this percentage of training time, and a so-manieth part of the best rival's."""

MOST_STEPS = 400
"""No block is longer; one that a save outlasts waits for it."""

OTHER_PAIRS = 4


def measure_overhead(
    setting: Setting,
    workload: str,
    *,
    size: int,
    steps: int,
    bytes_each: float,
    ours: Rival,
    rivals: Sequence[Rival],
) -> Measured:
    """Race in a workload of `size`: rows of the replay, or layers of the model.

    Blocks have `steps` at least. `bytes_each` is what a contestant holds at most.
    """
    race = Race("lost_percent")
    rounds: list[dict[str, float]] = []
    places = places_in_memory(setting, (ours,), bytes_each)
    for group in race_groups(setting, race, (ours,), rivals, places=places):
        group.each("make_training", workload=workload, size=size, steps=steps, directory="@")
        windows = group.each("find_window", interval=INTERVAL, most=MOST_STEPS, place="@/first")
        lengths = {name: answer["steps"] for name, answer in windows.items()}
        race.facts.setdefault("steps_of_a_block", {}).update(lengths)
        _play(setting, group, race, rounds)
        for interval in OTHER_INTERVALS:
            for number in range(min(setting.pairs, OTHER_PAIRS)):
                answers = _round(group, [ours.name], interval, number)
                label = f"{ours.name}_every_{interval}"
                race.scores.setdefault(label, []).append(_percent(answers[ours.name], interval))
        for name, answer in group.each("peak", interval=INTERVAL, place="@/peak").items():
            race.note(f"{name}_memory_MB", answer["memory_bytes"] / 1e6)
            race.note(f"{name}_peak_MB", answer["peak_bytes"] / 1e6)
    findings = [_own(race, ours), _against_best_rival(race, ours, rounds)]
    return Measured(findings, race.samples(), race.facts)


def _play(setting: Setting, group: Contest, race: Race, rounds: list[dict[str, float]]) -> None:
    """Play the rounds of a group; those who are far behind leave after some."""
    first = len(rounds)
    taking_part = list(group.contestants)
    for number in range(setting.pairs):
        answers = _round(group, taking_part, INTERVAL, number)
        rounds.append({name: _percent(answer, INTERVAL) for name, answer in answers.items()})
        for name, answer in answers.items():
            race.scores.setdefault(name, []).append(rounds[-1][name])
            race.note(f"{name}_lost_ms", answer["lost_s"] * 1e3)
            for key in ("step_p50", "step_p99", "in_flight_step_p50", "in_flight_step_p99"):
                race.note(f"{name}_{key}_ms", answer[f"{key}_ms"])
        if number + 1 == ALL_ROUNDS:
            taking_part = near(rounds[first:], race.rivals, taking_part)


def _round(group: Contest, names: Sequence[str], interval: int, number: int) -> Answers:
    return group.round(
        dict.fromkeys(names, "train"),
        backwards=bool(number % 2),
        interval=interval,
        saves_first=bool(number % 2),
        place="@/save",
    )


def _percent(answer: dict[str, float], interval: int) -> float:
    return 100 * answer["lost_s"] / (interval * answer["step_s"])


def _own(race: Race, ours: Rival) -> Finding:
    shares = race.scores[ours.name]
    text = f"{_told(shares)} every {INTERVAL:,} steps"
    for interval in OTHER_INTERVALS:
        other = race.scores[f"{ours.name}_every_{interval}"]
        text += f"; {_told(other)} every {interval:,}"
    bar = f"at most {BAR_PERCENT:g} % lost, a snapshot every {INTERVAL:,} steps"
    return Finding(bar, text, at_most(shares, BAR_PERCENT))


def _against_best_rival(race: Race, ours: Rival, rounds: list[dict[str, float]]) -> Finding:
    """Judge by the difference, round by round: what is lost may be nothing, or less."""
    bar = f"at most 1/{BAR_SHARE:g} of the best rival"
    raced = [name for name in race.rivals if name in race.scores]
    if not raced:
        return Finding(bar, no_rival(race.rivals), Verdict.SKIPPED)
    best = min(raced, key=lambda name: summarize(race.scores[name]).median)
    beyond = [BAR_SHARE * scores[ours.name] - scores[best] for scores in rounds if best in scores]
    text = f"{_told(race.scores[ours.name])} against {_told(race.scores[best])} of {best}"
    return Finding(bar, text, at_most(beyond, 0.0))


def _told(shares: list[float]) -> str:
    summary = summarize(shares)
    return f"{summary.median:.2f} % ({summary.low:.2f} to {summary.high:.2f})"
