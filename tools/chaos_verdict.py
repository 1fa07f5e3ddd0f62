"""What a fault has cost, and whether everything that was promised held: read from the diary.

Promises, for every restore after a fault: it gave back no older snapshot than the newest one whose
`wait()` had returned, unless that one was damaged on purpose; and of the rows added until the death
it lacked none (a living writer, `replay="latest"`), at most those of one open segment (a dead
machine), or those that the restored snapshot does not hold (damage, a full disk).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from chaos_faults import KINDS
from chaos_run import Outcome, Struck
from numpy.typing import NDArray

from pyengine.format.names import SnapshotName, parse_snapshot_name

POINTS = 60

SEGMENT_ROWS = 2048
"""Of the agent's ring: a fourth of its capacity, to the power of two below."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One line of the table: seconds from the fault to the next step and to the next durable
    snapshot, steps made again, rows lost, what the supervisor said and did; `broken` promises."""

    kind: str
    step: int
    what: str
    to_step: float | None
    to_durable: float | None
    steps_again: int
    rows_lost: int
    said: str
    broken: tuple[str, ...]
    skipped: str | None


def costs_of(outcome: Outcome) -> list[Cost]:
    """Return what each fault has cost, in order."""
    done = [struck for struck in outcome.struck if struck.at]
    nexts = dict(zip(map(id, done), done[1:], strict=False))
    return [_cost(outcome, struck, nexts.get(id(struck))) for struck in outcome.struck]


def broken_promises(outcome: Outcome) -> list[str]:
    """Return what was promised of the whole arm and does not hold."""
    plan = outcome.plan
    broken = []
    ended = [event for event in outcome.events if event["event"] == "ended"]
    if outcome.status != 0 or not ended:
        reason = outcome.summary.get("reason", "no summary")
        broken.append(f"training did not end: status {outcome.status}, {reason}")
    steps = outcome.history["step"] if len(outcome.records) else np.zeros(0)
    if not np.array_equal(steps, np.arange(plan.steps)):
        broken.append(f"{len(steps)} of {plan.steps} steps were made")
    missing = len(plan.faults) - len(outcome.struck)
    if missing:
        broken.append(f"{missing} faults found no run any more")
    return broken


def _cost(outcome: Outcome, struck: Struck, after: Struck | None) -> Cost:
    until = after.at if after is not None else float("inf")
    if not struck.at:
        failed = () if struck.failed is None else (struck.failed,)
        kind, step = struck.fault.kind, struck.fault.step
        return Cost(kind, step, "", None, None, 0, 0, "", failed, struck.skipped)
    records = outcome.records
    restores = _events(outcome, "restored", struck.at, until)
    deaths = [
        death
        for death in outcome.deaths
        if struck.start <= death["start"] < max((r["start"] for r in restores), default=0)
    ]
    must_restart = KINDS[struck.fault.kind].starts_again
    first_start = struck.start + must_restart
    later = records[(records["at"] > struck.at) & (records["start"] >= first_start)]
    durable = [
        event
        for event in _events(outcome, "durable", struck.at, float("inf"))
        if event["start"] >= first_start
    ]
    broken = [] if struck.failed is None else [struck.failed]
    steps_again = rows_lost = 0
    for restore in restores:
        last = records[records["start"] < restore["start"]][-1:]
        if len(last):
            steps_again += max(0, int(last["step"][0]) + 1 - restore["next_step"])
            lost = int(last["rows"][0]) - restore["rows"]
            if outcome.plan.replay == "latest":  # else they go back with the steps, and come again
                rows_lost += max(0, lost)
            broken += _broken_by(outcome, struck, restore, lost)
    return Cost(
        kind=struck.fault.kind,
        step=struck.step,
        what=struck.what,
        to_step=float(later["at"][0]) - struck.at if len(later) else None,
        to_durable=durable[0]["at"] - struck.at if durable else None,
        steps_again=steps_again,
        rows_lost=rows_lost,
        said="; ".join(map(_said, deaths)) or "went on",
        broken=tuple(broken),
        skipped=struck.skipped,
    )


def _broken_by(outcome: Outcome, struck: Struck, restore: dict[str, Any], lost: int) -> list[str]:
    """Return which promises a restore after a fault has broken."""
    broken = []
    harmed = set().union(*(s.harmed for s in outcome.struck if s.at <= restore["at"]))
    promised = [
        _parse(event["snapshot"])
        for event in _events(outcome, "durable", 0.0, restore["at"])
        if event["snapshot"] not in harmed
    ]
    newest = max(promised, key=_age, default=None)
    got = None if restore["snapshot"] is None else _parse(restore["snapshot"])
    if newest is not None and (got is None or _age(got) < _age(newest)):
        broken.append(f"{newest.text} was durable, {restore['snapshot']} was restored")
    if outcome.plan.replay == "exact":
        if restore["rows"] != restore["next_step"]:
            broken.append(f"{restore['rows']} rows at step {restore['next_step']}")
        return broken
    bound = {"nothing": 0, "open": SEGMENT_ROWS}.get(KINDS[struck.fault.kind].rows)
    if bound is not None and lost > bound:
        broken.append(f"{lost} rows were lost, at most {bound} were to be")
    return broken


def _parse(name: str) -> SnapshotName:
    found = parse_snapshot_name(name)
    assert found is not None, name
    return found


def _age(name: SnapshotName) -> tuple[int, int]:
    return name.generation, name.sequence


def _events(outcome: Outcome, kind: str, after: float, until: float) -> list[dict[str, Any]]:
    return [e for e in outcome.events if e["event"] == kind and after < e["at"] < until]


def _said(death: dict[str, Any]) -> str:
    error = death.get("error")
    kind = f" ({error['type']})" if error else ""
    return f"{death['fault']}{kind}, started again"


def curve_of(outcome: Outcome) -> NDArray[np.float64]:
    """Return the mean return of the last 20 episodes, at POINTS steps evenly over training."""
    history = outcome.history
    finished = history[~np.isnan(history["result"])]
    ends = np.searchsorted(finished["step"], points_of(outcome.plan.steps))
    means = [finished["result"][max(0, end - 20) : end].mean() if end else np.nan for end in ends]
    return np.array(means, np.float64)


def points_of(steps: int) -> NDArray[np.float64]:
    """Return the steps at which curves are looked at."""
    return np.linspace(0, steps, POINTS + 1)[1:]


def first_difference(one: Outcome, other: Outcome) -> int | None:
    """Return the first step whose action or episode's return differs; None: all are equal."""
    a, b = one.history, other.history
    count = min(len(a), len(b))
    same = (a["action"][:count] == b["action"][:count]) & (
        a["result"][:count].view("u4") == b["result"][:count].view("u4")
    )
    if not same.all():
        return int(np.argmin(same))
    return None if len(a) == len(b) else count


def first_fall_back(outcome: Outcome) -> int:
    """Return the first step that was made after a restore; the number of steps where none was."""
    resumed = [
        e["next_step"] for e in outcome.events if e["event"] == "restored" and e["start"] > 1
    ]
    return min(resumed, default=outcome.plan.steps)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Everything about one call: costs by arm, curves of the quiet and the chaos arms (one row a
    seed), how far actions were the quiet arm's (None: all), and what is broken."""

    seed: int
    seconds: float
    outcomes: dict[str, Outcome]
    costs: dict[str, list[Cost]]
    curves: dict[str, NDArray[np.float64]]
    differs_at: dict[str, int | None]
    broken: tuple[str, ...]


def judge(outcomes: dict[str, Outcome], seed: int, seconds: float) -> Verdict:
    """Return what became of all arms; the quiet arm of a seed is what others are held against."""
    broken, costs, differs_at = [], {}, {}
    for name, outcome in outcomes.items():
        broken += [f"{name}: {text}" for text in broken_promises(outcome)]
        costs[name] = costs_of(outcome)
        broken += [
            f"{name}: {cost.kind} at step {cost.step} ({cost.what}): {text}"
            for cost in costs[name]
            for text in cost.broken
        ]
        quiet = outcomes[f"quiet {outcome.plan.seed}"]
        if outcome is quiet:
            continue
        differs_at[name] = found = first_difference(outcome, quiet)
        is_exact = outcome.plan.replay == "exact"
        wanted = outcome.plan.steps if is_exact else first_fall_back(outcome)
        if found is not None and found < wanted:
            broken.append(f"{name}: step {found} is not that of the quiet arm")
    curves = {
        kind: np.array([curve_of(o) for name, o in outcomes.items() if name.startswith(kind)])
        for kind in ("quiet", "chaos")
    }
    return Verdict(seed, seconds, outcomes, costs, curves, differs_at, tuple(broken))
