"""Faults are drawn by seed; the verdict on a made-up run finds every promise that was broken."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TOOLS = Path(__file__).parents[3] / "tools"
OLD, NEW = "step-00000010.g0001.s0001", "step-00000020.g0001.s0002"


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(TOOLS))
    yield
    for name in [name for name in sys.modules if name.startswith("chaos_")]:
        del sys.modules[name]


def outcome(
    *,
    restored: str | None = NEW,
    rows: int = 26,
    kind: str = "kill learner",
    harmed: tuple[str, ...] = (),
    replay: str = "latest",
    failed: str | None = None,
) -> Any:
    """A run of 30 steps whose agent died after step 25 and went on from a snapshot."""
    from chaos_diary import RECORD
    from chaos_faults import Fault
    from chaos_run import Outcome, Plan, Struck

    next_step = 0 if restored is None else int(restored[5:13]) + 1
    steps = [*((1, step) for step in range(26)), *((2, step) for step in range(next_step, 30))]
    records = np.zeros(len(steps), RECORD)
    records["start"], records["step"] = np.array(steps).T
    records["at"] = np.where(records["start"] == 1, records["step"], 100 + records["step"])
    records["rows"] = records["step"] + 1
    records["result"] = np.nan
    fault = Fault(kind, 25, 0.5, False)
    return Outcome(
        Plan("chaos 1", 1, 30, replay, (fault,)),
        struck=[Struck(fault, 25.5, 1, 25, "done", frozenset(harmed), None, failed)],
        status=0,
        events=[
            {"event": "durable", "at": 11.0, "start": 1, "snapshot": OLD},
            {"event": "durable", "at": 21.0, "start": 1, "snapshot": NEW},
            {"event": "restored", "at": 30.0, "start": 2, "snapshot": restored, "rows": rows,
             "next_step": next_step},
            {"event": "durable", "at": 128.0, "start": 2, "snapshot": "step-00000028.g0002.s0001"},
            {"event": "ended", "at": 140.0, "start": 2},
        ],
        deaths=[{"fault": "signal", "start": 1, "error": None}],
        records=records,
    )  # fmt: skip


def cost_of(**options: Any) -> Any:
    from chaos_verdict import costs_of

    (cost,) = costs_of(outcome(**options))
    return cost


def test_one_seed_gives_one_series_of_faults_and_another_gives_another() -> None:
    from chaos_faults import KINDS, draw_faults

    faults = draw_faults(7, 50, 24_000, KINDS)
    assert faults == draw_faults(7, 50, 24_000, KINDS) != draw_faults(8, 50, 24_000, KINDS)
    assert {fault.kind for fault in faults} == set(KINDS), "50 faults are of every kind"
    steps = [fault.step for fault in faults]
    assert steps == sorted(steps)
    assert 0 < steps[0] < steps[-1] < 24_000


def test_the_cost_of_a_fault_is_told_in_seconds_steps_and_rows() -> None:
    cost = cost_of(rows=24, kind="kill both")
    assert (cost.to_step, cost.to_durable) == (95.5, 102.5)
    assert (cost.steps_again, cost.rows_lost) == (5, 2)
    assert (cost.said, cost.broken) == ("signal, started again", ())


def test_a_lost_snapshot_is_found_unless_it_was_damaged_on_purpose() -> None:
    assert f"{NEW} was durable" in cost_of(restored=OLD).broken[0]
    assert f"{NEW} was durable" in cost_of(restored=None).broken[0]
    assert cost_of(restored=OLD, kind="flip a bit", harmed=(NEW,)).broken == ()
    assert f"{OLD} was durable" in cost_of(restored=None, harmed=(NEW,)).broken[0]


def test_rows_beyond_what_may_be_lost_are_found() -> None:
    assert "1 rows were lost, at most 0" in cost_of(rows=25).broken[0]
    assert cost_of(rows=25, kind="kill both").broken == ()
    assert "22 rows at step 21" in cost_of(rows=22, replay="exact").broken[0]
    exact = cost_of(rows=21, replay="exact")
    assert (exact.rows_lost, exact.broken) == (0, ()), "they went back with the steps"


def test_a_fault_without_recovery_is_a_broken_promise() -> None:
    assert cost_of(failed="a step after the fault: not within 90 s").broken != ()


def test_training_that_did_not_end_is_a_broken_promise() -> None:
    from chaos_verdict import broken_promises

    good = outcome()
    assert broken_promises(good) == []
    good.events.pop()
    assert "training did not end" in broken_promises(good)[0]
    short = outcome()
    short.records = short.records[:-1]
    assert "29 of 30 steps" in broken_promises(short)[0]


def test_the_first_step_that_differs_is_found() -> None:
    from chaos_verdict import first_difference, first_fall_back

    one, other = outcome(), outcome(restored=OLD)
    assert first_difference(one, other) is None, "steps made again count once"
    other.records["action"][-3] = 1
    assert first_difference(one, other) == 27
    assert first_fall_back(other) == 11
