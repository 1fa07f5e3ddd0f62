"""Rings that come or change right before a snapshot, while the writer still ends the one before."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import pyengine


def new_ring() -> pyengine.ReplayBuffer:
    return pyengine.ReplayBuffer({"x": pyengine.Field((), "float32")}, 8)


def test_a_ring_that_is_tracked_right_after_a_commit_is_in_the_next_snapshot(
    tmp_path: Path,
) -> None:
    counters = {"step": 0}
    with pyengine.SnapshotEngine(tmp_path / "run", keep_last=1) as engine:
        engine.track(counters=counters)
        engine.restore()
        engine.snapshot(0).wait(60)
        for step in range(1, 25):
            ring = new_ring()
            engine.track(**{f"ring{step}": ring})
            ring.add(x=1.0)
            assert engine.snapshot(step).wait(60).global_step == step


def test_a_snapshot_right_after_a_restore_has_the_rings_new_memory(tmp_path: Path) -> None:
    ring = new_ring()
    with pyengine.SnapshotEngine(tmp_path / "run", keep_last=1) as engine:
        engine.track(replay=ring)
        engine.restore()
        ring.add(x=np.float32(3))
        engine.snapshot(0).wait(60)
        for step in range(1, 25):
            assert engine.restore().rows == 1
            assert engine.snapshot(step).wait(60).global_step == step
