"""A wrapped ring of several lanes, saved in mid-lap, read and continued in a new process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import committed

import pyengine

LANES, ROWS = 4, 8


def ring() -> pyengine.ReplayBuffer:
    schema = pyengine.Schema(
        {
            "value": ((), "int64"),
            "priority": pyengine.Field((), "float32", mutable=True, default=0.5),
        }
    )
    return pyengine.ReplayBuffer(schema, capacity=LANES * ROWS, num_envs=LANES, seed=3)


def insert(buffer: pyengine.ReplayBuffer, numbers: range) -> None:
    for number in numbers:
        buffer.add(value=np.arange(LANES) * 1000 + number)


def look(buffer: pyengine.ReplayBuffer) -> dict[str, Any]:
    """Return everything that can be read of the ring, oldest to newest per lane."""
    rows = buffer[buffer.refs()]
    order = [rows["value"][rows["value"] // 1000 == lane] % 1000 for lane in range(LANES)]
    return {
        "rows": [lane.tolist() for lane in order],
        "priority": rows["priority"].tolist(),
        "head": np.asarray(buffer.head).tolist(),
        "tail": np.asarray(buffer.tail).tolist(),
        "total_count": np.asarray(buffer.total_count).tolist(),
        "length": len(buffer),
        "column": np.asarray(buffer.column("value")).tolist(),
    }


def save(send: Any, run_dir: str, inserts: int) -> None:
    with pyengine.SnapshotEngine(run_dir) as engine, ring() as buffer:
        engine.track(replay=buffer)
        engine.restore()
        insert(buffer, range(inserts))
        if inserts:
            buffer.update(buffer.refs()[:1], priority=0.25)
        send(("look", look(buffer)))
        engine.snapshot(1).wait(60)


def resume(send: Any, run_dir: str, inserts: int, eager: bool) -> None:
    with pyengine.SnapshotEngine(run_dir) as engine, ring() as buffer:
        engine.track(replay=buffer)
        report = engine.restore(eager=eager)
        send(("rows", report.component("replay").rows))
        send(("look", look(buffer)))
        insert(buffer, range(inserts, inserts + 3))
        send(("look", look(buffer)))
        engine.snapshot(2).wait(60)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("inserts", [0, 1, 8, 13])
def test_rows_and_counts_survive_and_age_out_exactly(
    start: Any, tmp_path: Path, inserts: int, eager: bool
) -> None:
    run_dir = str(tmp_path / "run")
    saver = start(save, run_dir, inserts)
    before = saver.receive("look")[1]
    assert saver.join() == 0
    valid = list(range(max(0, inserts - ROWS), inserts))
    assert before["rows"] == [valid] * LANES
    assert before["head"] == [inserts % ROWS] * LANES
    assert before["total_count"] == [inserts] * LANES

    resumed = start(resume, run_dir, inserts, eager)
    assert resumed.receive("rows")[1] == LANES * len(valid)
    assert resumed.receive("look")[1] == before
    after = resumed.receive("look")[1]
    assert after["rows"] == [(valid + list(range(inserts, inserts + 3)))[-ROWS:]] * LANES
    assert after["total_count"] == [inserts + 3] * LANES
    assert resumed.join() == 0

    again = start(resume, run_dir, inserts + 3, False)
    assert again.receive("rows")[1] == after["length"]
    assert again.receive("look")[1] == after
    assert again.join() == 0
    assert len(committed(run_dir)) == 3
