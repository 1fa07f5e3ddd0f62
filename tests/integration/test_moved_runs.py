"""A run that is moved or removed under its trainer: what has its path then stays untouched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pyengine
from pyengine import errors

ROWS = 4096


def moved(run_dir: str) -> None:
    os.rename(run_dir, f"{run_dir}-old")


def removed(run_dir: str) -> None:
    while os.path.exists(run_dir):  # the writer may be making a file meanwhile
        shutil.rmtree(run_dir, ignore_errors=True)


def start(run_dir: str, value: int) -> tuple[pyengine.SnapshotEngine, pyengine.ReplayBuffer]:
    """Start a run whose state is `value` throughout, with snapshots of steps 0 and 1."""
    ring = pyengine.ReplayBuffer({"value": ((8,), "int64")}, capacity=ROWS, seed=1)
    engine = pyengine.SnapshotEngine(run_dir)
    engine.track(replay=ring, weights={"w": np.full(4, value)})
    for step in range(2):
        ring.extend(value=np.full((ROWS // 4, 8), value))
        engine.snapshot(step).wait(60)
    return engine, ring


def restored(run_dir: str) -> tuple[int, set[int], set[int]]:
    """Return the step that a new start restores, and all values that it finds."""
    weights = {"w": np.zeros(4, np.int64)}
    with (
        pyengine.ReplayBuffer({"value": ((8,), "int64")}, capacity=ROWS) as ring,
        pyengine.SnapshotEngine(run_dir) as engine,
    ):
        engine.track(replay=ring, weights=weights)
        report = engine.restore()
        assert report
        rows = ring.gather(ring.refs())
        return report.global_step, set(weights["w"].tolist()), set(rows["value"].ravel().tolist())


def lines(run_dir: str) -> set[str]:
    """Return the lines that segments in the pool were written under: one of each run."""
    return {path.name.split("-")[0] for path in Path(run_dir, "segments").rglob("*.seg")}


@pytest.mark.parametrize("lose", [moved, removed])
def test_a_trainer_commits_nothing_into_the_run_that_has_its_path(
    tmp_path: Path, lose: Callable[[str], None]
) -> None:
    run_dir = str(tmp_path / "run")
    former, its_ring = start(run_dir, 1)
    lose(run_dir)
    engine, ring = start(run_dir, 2)
    own = lines(run_dir)
    assert len(own) == 1
    with its_ring, ring:
        its_ring.extend(value=np.full((ROWS, 8), 1))
        for step in (2, 60):
            with pytest.raises(errors.StaleGenerationError, match="another run now"):
                former.snapshot(step).wait(60)
        former.close(timeout=30)
        assert lines(run_dir) == own
        engine.snapshot(60).wait(60)
        engine.close()
    assert restored(run_dir) == (60, {2}, {2})
    if lose is moved:
        assert restored(f"{run_dir}-old") == (1, {1}, {1})


def test_a_run_that_is_gone_fails_its_snapshots_by_name(tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    engine, ring = start(run_dir, 1)
    moved(run_dir)
    with ring:
        with pytest.raises(errors.SnapshotFailedError, match=f"{run_dir} was moved or removed"):
            engine.snapshot(2).wait(60)
        os.rename(f"{run_dir}-old", run_dir)
        engine.snapshot(3).wait(60)
        engine.close()
    assert restored(run_dir) == (3, {1}, {1})


def test_a_removed_lock_is_named_with_the_way_out(tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    engine, ring = start(run_dir, 1)
    os.unlink(f"{run_dir}/lock")
    with ring:
        with pytest.raises(errors.SnapshotFailedError, match="started again"):
            engine.snapshot(2).wait(60)
        engine.close()
    assert restored(run_dir) == (1, {1}, {1})
