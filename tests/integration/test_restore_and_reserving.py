"""A ring's memory is given ahead of its head by a thread, which must not meet a restore."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import pyengine
from pyengine.replay import reserving
from pyengine.shm.states import SlotState

LANES = 64


def new_ring() -> pyengine.ReplayBuffer:
    schema = pyengine.Schema({"value": pyengine.Field((512,), "float32")})
    return pyengine.ReplayBuffer(schema, capacity=256 * LANES, num_envs=LANES, seed=0)


def test_each_open_segment_gets_a_slot_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = new_ring()
    rows = np.arange(3 * LANES, dtype=np.float32).reshape(3, LANES, 1).repeat(512, axis=2)
    with pyengine.SnapshotEngine(tmp_path / "run", track_rng=False) as engine:
        engine.track(replay=ring)
        engine.restore()
        ring.extend(value=rows)
        engine.snapshot(1).wait(60)
    monkeypatch.setattr(reserving, "_POLL_SECONDS", 0)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(8):
            ring = new_ring()
            with pyengine.SnapshotEngine(tmp_path / "run", track_rng=False) as engine:
                engine.track(replay=ring)
                engine.restore()
                assert ring.control is not None
                keys = [key for _, key in ring.control.slots_in(SlotState.OPEN)]
                assert sorted(keys) == list(range(LANES))
                found = np.sort(ring.column("value")[:][:, 0])
                assert np.array_equal(found[1 - 3 * LANES :], np.arange(1, 3 * LANES))
            ring.close()
    finally:
        sys.setswitchinterval(interval)
