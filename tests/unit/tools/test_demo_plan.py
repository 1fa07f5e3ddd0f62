"""The demo keeps its time, on a slow machine and on one that becomes slow."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[3] / "tools"
BUDGET = 600.0


@pytest.fixture
def plans() -> Any:
    spec = importlib.util.spec_from_file_location("demo_plan", TOOLS / "demo_plan.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo_plan"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["demo_plan"]


class Machine:
    """Stands for the module `time`; plays steps at a pace that depends on how many were made."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def time(self) -> float:
        return self.now

    monotonic = time

    def play_arm_a(self, plans: Any, pace: Callable[[int], float]) -> tuple[Any, int, float]:
        """Return the plan, the steps after which arm A ended, and the end of arms B and C."""
        speed = plans.Speed(play=0.0015, learn=0.012, start=4.0)
        clock = plans.Clock(self.now, BUDGET)
        plan = plans.Plan().fitted(speed, clock.left)
        shorten = plans.Shortener(plan, speed, clock, 50.0)
        done, ends_at = 0, plan.steps
        while done < ends_at:
            self.now += 10 * pace(done)
            done += 10
            ends_at = min(ends_at, shorten(done) or ends_at)
        rest = (plans.REDONE - 1) * done * pace(done) + 4 * speed.start
        return plan, done, self.now - 1_000.0 + rest


@pytest.fixture
def machine(plans: Any, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(plans, "time", machine)
    return machine


def test_a_machine_as_fast_as_measured_plays_all_steps(plans: Any, machine: Machine) -> None:
    plan, done, _ = machine.play_arm_a(plans, lambda _: 0.003)
    assert done == plan.steps == plans.Plan().steps


@pytest.mark.parametrize(
    ("slow_from", "pace"), [(0, 0.012), (5_000, 0.012), (10_000, 0.012), (0, 0.03), (5_000, 0.03)]
)
def test_arms_end_sooner_where_the_machine_becomes_slow(
    plans: Any, machine: Machine, slow_from: int, pace: float
) -> None:
    plan, done, seconds = machine.play_arm_a(
        plans, lambda done: pace if done >= slow_from else 0.003
    )
    assert plans.LEAST_STEPS <= done < plan.steps
    assert seconds < BUDGET
    kills = plans.Plan(steps=done, capacity=plan.capacity).kill_range
    assert 0 < kills[0] <= kills[-1] < done


def test_a_hopeless_machine_is_given_up_early(plans: Any, machine: Machine) -> None:
    with pytest.raises(plans.OutOfTimeError, match="120 ms a step"):
        machine.play_arm_a(plans, lambda _: 0.12)
    assert machine.now - 1_000.0 < BUDGET / 3


def test_the_arms_with_stable_baselines3_get_what_is_left(plans: Any) -> None:
    speed = plans.Speed(play=0.0015, learn=0.012, start=4.0)
    full = plans.Sb3Plan()
    assert full.fitted(speed, 100.0) == full
    shorter = full.fitted(speed, 55.0)
    assert shorter.steps < full.steps
    assert shorter.seconds(speed) <= 55.0
    assert full.fitted(speed, 20.0) is None
