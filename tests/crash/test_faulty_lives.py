"""A process killed at any call, a call that fails, once or for good: the run goes on.

`make torture` strikes at every call; these are some of each kind. A failure names the case:
`tools/torture.py --only kill/...` or `error/...` repeats it.
"""

from __future__ import annotations

import pytest

from crash.faulty_lives import (
    ERRORS,
    PROCESSES,
    VICTIMS,
    Case,
    Stage,
    error_cases,
    errors_of,
    kill_cases,
    read_cases,
)
from crash.lives import LIVES
from crash.oracle import judge_all


def _spread(cases: list[Case], count: int) -> list[Case]:
    """Return some cases, from all over."""
    return cases[:: max(1, len(cases) // count)][:count]


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("process", PROCESSES)
def test_a_kill_at_a_call_loses_nothing_that_was_waited_for(
    stage: Stage, process: str, victim: str
) -> None:
    cases = [case for case in kill_cases(stage) if (case.process, case.victim) == (process, victim)]
    assert {case.life for case in cases} == set(range(len(LIVES)))
    for case in _spread(cases, 2):
        assert stage.run(case) is None, case.text


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("for_good", [False, True])
def test_a_call_that_fails_is_made_good_or_told(stage: Stage, error: str, for_good: bool) -> None:
    cases = [
        case for case in error_cases(stage) if (case.error, case.for_good) == (error, for_good)
    ]
    assert {case.process for case in cases} == {*PROCESSES, "both"}
    for case in _spread(cases, 2):
        assert stage.run(case) is None, case.text


@pytest.mark.parametrize("for_good", [False, True])
def test_a_read_that_fails_is_no_damage_and_moves_nothing(stage: Stage, for_good: bool) -> None:
    cases = [case for case in read_cases(stage) if case.for_good == for_good and case.life > 0]
    for case in _spread(cases, 2):
        assert stage.run(case) is None, case.text


def test_every_call_of_the_scenario_has_its_cases(stage: Stage) -> None:
    assert sum(map(len, stage.calls.values())) > 500
    kills = {(c.life, c.process, c.nth, c.when, c.victim) for c in kill_cases(stage)}
    errors = {(c.life, c.process, c.nth, c.error, c.for_good) for c in error_cases(stage)}
    for (life, process), ops in stage.calls.items():
        for nth, op in enumerate(ops, 1):
            call = (life, process, nth)
            assert {(*call, w, v) for w in ("before", "after") for v in VICTIMS} <= kills
            for for_good in (False, True):
                assert {(*call, error, for_good) for error in errors_of(op)} <= errors
                assert (life, "both", nth, "EIO", for_good) in errors
    reads = {(c.life, c.nth, c.for_good) for c in read_cases(stage)}
    for life, ops in stage.reads.items():
        assert {"open", "close"} <= set(ops)
        assert {(life, nth, g) for nth in range(1, len(ops) + 1) for g in (False, True)} <= reads
    assert "pread_into" in stage.reads[1], "a restore reads"


def test_a_case_is_named_by_its_text(stage: Stage) -> None:
    for case in (*_spread(kill_cases(stage), 50), *_spread(error_cases(stage), 50)):
        assert Case.parse(case.text) == case


RIGHT = {"event": "restored", "name": "step-00000002.g0001.s0001", "step": 2, "right": True}
WRONG = {
    "other values": [{**RIGHT, "right": False}],
    "was durable": [
        {"event": "durable", "name": "step-00000005.g0001.s0002"},
        RIGHT,
    ],
    "nothing was restored": [
        {"event": "durable", "name": RIGHT["name"]},
        {"event": "restored", "name": None, "step": None, "right": True},
    ],
    "rows were lost": [
        {"event": "added", "step": 7},
        {"event": "latest", "right": True, "counts": [8, 7]},
    ],
    "latest rows came back with other": [{"event": "latest", "right": False, "counts": [9, 9]}],
    "blocked": [{"event": "longest", "tick": 60.0}],
    "nobody was told": [{"event": "fate", "name": RIGHT["name"], "state": "FAILED"}],
    "did not go on": [RIGHT],
}


@pytest.mark.parametrize("what", WRONG)
def test_the_oracle_finds(what: str) -> None:
    facts = [*WRONG[what], *([] if what == "did not go on" else [{"event": "whole"}])]
    assert what in (judge_all(facts, 0) or "")
    assert judge_all([RIGHT, {"event": "whole"}], 0) is None
