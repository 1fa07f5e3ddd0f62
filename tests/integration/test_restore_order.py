"""Applying a snapshot: what an exception leaves, and what comes last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from program import Training

import pyengine
from pyengine import errors


class Breaks:
    """An object whose set_state raises the first times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.value = 0

    def get_state(self) -> dict[str, int]:
        return {"value": self.value}

    def set_state(self, state: dict[str, int]) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise RuntimeError("no")
        self.value = state["value"]


def test_an_interrupted_restore_poisons_until_one_succeeds(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pyengine.SnapshotEngine(run_dir) as engine:
        source = Breaks(0)
        source.value = 7
        engine.track(thing=source, counters={"n": 3})
        engine.snapshot(4).wait(60)
    thing, counters = Breaks(1), {"n": 0}
    with pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(thing=thing, counters=counters)
        with pytest.raises(RuntimeError, match="no"):
            engine.restore()
        with pytest.raises(errors.PoisonedEngineError):
            engine.tick(5)
        with pytest.raises(errors.PoisonedEngineError):
            engine.snapshot(5)
        assert engine.restore().next_step == 5
        assert (thing.value, counters) == (7, {"n": 3})
        engine.snapshot(5).wait(60)
    assert not list((run_dir / "recovery").glob("restoring.*"))


def test_a_state_that_its_object_refuses_changes_nothing(tmp_path: Path) -> None:
    class Sized(Breaks):
        size = 3

        def get_state(self) -> dict[str, int]:
            return {"value": self.value, "size": self.size}

        def check_state(self, state: dict[str, int]) -> None:
            if state["size"] != self.size:
                raise ValueError(f"{state['size']} agents")

    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(a=torch.ones(3), b=Sized(0))
        engine.snapshot(0).wait(60)
    first, second = torch.zeros(3), Sized(0)
    second.size = 4
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(a=first, b=second)
        with pytest.raises(errors.StateMismatchError, match="3 agents"):
            engine.restore()
        assert first.tolist() == [0, 0, 0]
        second.size = 3
        assert engine.restore()
        assert first.tolist() == [1, 1, 1]


def test_generators_are_set_after_every_user_callable(tmp_path: Path) -> None:
    class Draws(Breaks):
        def set_state(self, state: dict[str, int]) -> None:
            torch.rand(3)
            np.random.rand(3)
            self.explorer.random()
            self.ring.sample(4)

    def make(seed: int) -> tuple[Training, Draws]:
        training, draws = Training(seed), Draws(0)
        draws.explorer, draws.ring = training.rng, training.ring
        return training, draws

    training, draws = make(0)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.track(draws=draws)
        engine.restore()
        for step in range(10):
            training.step(step)
        engine.snapshot(9).wait(60)
        expected = training.digest()
    training, draws = make(3)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.track(draws=draws)
        engine.restore()
        assert training.digest() == expected
