"""What is tracked, once and by one engine; and arguments refused before anything happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from program import Training

import pyengine
from pyengine import errors


@pytest.mark.parametrize("step", ["a", 1.5, True, -1, 2**63, None])
def test_a_step_that_is_none_is_refused_before_anything_is_taken(
    run: tuple[pyengine.SnapshotEngine, Training], step: Any
) -> None:
    engine, _ = run
    for call in (engine.tick, engine.snapshot):
        with pytest.raises(errors.ConfigError, match="step: expected an integer"):
            call(step)
    if step is not None:
        with pytest.raises(errors.ConfigError, match="final: expected an integer"):
            engine.close(final=step)
    assert engine.snapshot(2**63 - 1).wait(60).global_step == 2**63 - 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replay", 5),
        ("replay", "newest"),
        ("replay_last", -1),
        ("replay_last", 1.5),
        ("replay_last", True),
        ("allow", "policy"),
        ("allow", [3]),
        ("eager", "no"),
    ],
)
def test_a_restore_refuses_what_it_does_not_know(
    run: tuple[pyengine.SnapshotEngine, Training], name: str, value: Any
) -> None:
    engine, _ = run
    with pytest.raises(errors.ConfigError, match=f"^{name}: expected .*, got "):
        engine.restore(**{name: value})


def test_names_and_objects_are_tracked_once(run: tuple[pyengine.SnapshotEngine, Training]) -> None:
    engine, training = run
    with pytest.raises(errors.ConfigError, match="policy"):
        engine.track(policy=torch.nn.Linear(1, 1))
    with pytest.raises(errors.ConfigError, match="one object"):
        engine.track(other=training.ring)
    with pytest.raises(errors.UntrackableError):
        engine.track(step=3)
    assert engine.snapshot(0).wait(60)


def test_one_ring_has_one_engine(
    run: tuple[pyengine.SnapshotEngine, Training], tmp_path: Path
) -> None:
    _, training = run
    with pyengine.SnapshotEngine(tmp_path / "other") as other:
        with pytest.raises(errors.RingInUseError):
            other.track(counters={"n": 1}, replay=training.ring)
        assert other.track(counters={"n": 1}) is other


def test_a_ring_that_holds_rows_is_persisted_when_it_is_tracked(tmp_path: Path) -> None:
    training = Training()
    for step in range(20):
        training.step(step)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.restore()
        engine.snapshot(19).wait(60)
        expected = training.digest()
    again = Training(seed=2)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        again.track(engine)
        engine.restore()
        assert again.digest() == expected
