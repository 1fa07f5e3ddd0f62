"""A snapshot is of one instant, however late its bytes are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from program import Training, new_ring

import pyengine

SLOW = [
    {
        "op": "mkdir",
        "path": "*/snapshots/.tmp-*",
        "process": "*pyengine.writer*",
        "action": "delay",
        "seconds": 2.0,
    }
]


def test_what_is_stored_is_wholly_of_the_step(
    monkeypatch: pytest.MonkeyPatch, start: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYENGINE_FAULT_PLAN", json.dumps(SLOW))
    run_dir = str(tmp_path / "run")
    training = Training(ring=new_ring(rows_per_lane=128))
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        engine.restore()
        for step in range(2):
            training.step(step)
        expected = training.digest()
        pending = engine.snapshot(1)
        for step in range(2, 7):
            training.step(step)
        for step in range(7, 107):
            training.insert(step)
        assert not pending.is_done, "the writer was meant to be late"
        check_addresses(engine, training)
        info = pending.wait(60)
        late = training.digest()
    assert info.global_step == 1
    assert all(late[name] != expected[name] for name in expected)
    monkeypatch.delenv("PYENGINE_FAULT_PLAN")
    resumed = start(restored_digest, run_dir)
    assert resumed.receive("digest")[1] == expected
    assert resumed.join() == 0


def restored_digest(send: Any, run_dir: str) -> None:
    training = Training(seed=9, ring=new_ring(9, rows_per_lane=128))
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        engine.restore()
        send(("digest", training.digest()))


def check_addresses(engine: Any, training: Training) -> None:
    """No staged address is a live one."""
    live = list(training.net.state_dict().values())
    live += [v for state in training.optimizer.state.values() for v in state.values()]
    addresses = [value.data_ptr() for value in live]
    addresses += [array.ctypes.data for array in training.ring.mutable_arrays().values()]
    slots = [slot.arena for slot in engine._session.buffers.slots if slot.arena is not None]
    assert slots
    for arena in slots:
        first = arena.mapping.address
        assert not any(first <= address < first + arena.size_bytes for address in addresses)
    assert np.all(np.asarray(addresses) != 0)
