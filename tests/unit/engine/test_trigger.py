"""When a snapshot is due: crossings, seconds, budget."""

from __future__ import annotations

import logging

import pytest

from pyengine.engine.trigger import Trigger
from pyengine.errors import ConfigError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fires(trigger: Trigger, steps: list[int]) -> list[int]:
    fired = []
    for step in steps:
        if trigger.is_due(step):
            trigger.fired(step)
            fired.append(step)
    return fired


def test_each_crossing_of_a_multiple_fires_once() -> None:
    assert fires(Trigger(every_steps=10), list(range(35))) == [10, 20, 30]


def test_jumps_over_a_multiple_still_fire() -> None:
    assert fires(Trigger(every_steps=10), [7, 14, 21, 28, 35, 42]) == [14, 21, 35, 42]


def test_nothing_fires_before_the_start_step_is_left_behind() -> None:
    trigger = Trigger(every_steps=10)
    trigger.start(20)
    assert fires(trigger, [20, 21, 29, 30]) == [30]


def test_neither_steps_nor_seconds_never_fires() -> None:
    assert fires(Trigger(), list(range(1000))) == []


def test_seconds_fire_whatever_the_step() -> None:
    clock = Clock()
    trigger = Trigger(every_seconds=5, clock=clock)
    assert not trigger.is_due(1)
    clock.now += 5
    assert trigger.is_due(1)
    trigger.fired(1)
    assert not trigger.is_due(2)


def test_whichever_comes_first_fires_and_restarts_both() -> None:
    clock = Clock()
    trigger = Trigger(every_steps=10, every_seconds=5, clock=clock)
    clock.now += 6
    assert trigger.is_due(3)
    trigger.fired(3)
    assert trigger.is_due(10)
    trigger.fired(10)
    clock.now += 4
    assert not trigger.is_due(11)


def test_costly_snapshots_move_the_next_one_back_and_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    trigger = Trigger(every_steps=1, budget=0.1, clock=clock)
    assert trigger.is_due(1)
    trigger.fired(1)
    trigger.stalled(0.2)
    trigger.persisted(1.0)
    with caplog.at_level(logging.WARNING, logger="pyengine"):
        clock.now += 9.9
        assert not trigger.is_due(2)
        assert not trigger.is_due(3)
    assert len(caplog.records) == 1
    assert "10 s apart at least (budget=0.1; None for no limit)" in caplog.text
    clock.now += 0.2
    assert trigger.is_due(3), "what became due meanwhile stays due"


def test_without_a_budget_cost_does_not_matter() -> None:
    trigger = Trigger(every_steps=1, budget=None)
    trigger.persisted(1000.0)
    assert fires(trigger, [1, 2, 3]) == [1, 2, 3]


@pytest.mark.parametrize(
    "settings", [{"every_steps": 0}, {"every_seconds": 0}, {"budget": 0}, {"budget": 1.5}]
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Trigger(**settings)
