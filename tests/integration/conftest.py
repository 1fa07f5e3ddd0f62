"""Fixtures of the integration tests: real processes, marked so that leftovers are found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import forkserver, start, token
from program import Training, tracking
from supervision import supervise

import pyengine

__all__ = ["forkserver", "start", "supervise", "token"]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A run with one snapshot at step 19, and its digest."""
    run_dir = tmp_path / "run"
    with tracking(run_dir, 0, algorithm="dqn", notes={"env": "toy"}) as (engine, training):
        engine.restore()
        for step in range(20):
            training.step(step)
        engine.snapshot(19).wait(60)
        return run_dir, training.digest()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[pyengine.SnapshotEngine, Training]]:
    """An engine on a fresh run, and the training that it tracks."""
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.restore()
        yield engine, training
