"""Lines: every file of the pool is of one that is on record, and goes when nobody needs it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import pyengine
from pyengine.format import names
from pyengine.format.segment import parse_header
from pyengine.fs import door
from pyengine.fs.faults import FaultDoor, Recorder, Rule

ROWS = 64


def new_ring() -> pyengine.ReplayBuffer:
    schema = {"x": ((), "int64"), "payload": ((4096,), "uint8")}
    return pyengine.ReplayBuffer(schema, capacity=ROWS)


def fill(ring: pyengine.ReplayBuffer, count: int) -> None:
    first = int(ring.total_count)
    x = np.arange(first, first + count)
    ring.extend(x=x, payload=np.zeros((count, 4096), np.uint8))


def pool(run_dir: Path) -> list[names.PoolName]:
    directory = run_dir / "segments" / "replay"
    found = map(names.parse_pool_name, os.listdir(directory) if directory.exists() else ())
    return [name for name in found if name is not None]


@pytest.mark.parametrize("when", ["before it is tracked", "before the run begins"])
def test_rows_that_came_first_are_of_the_runs_line(tmp_path: Path, when: str) -> None:
    run_dir = tmp_path / "run"
    for fresh in (False, True):  # again under the same names, beside the first
        with new_ring() as ring, pyengine.SnapshotEngine(run_dir, fresh=fresh) as engine:
            if when == "before it is tracked":
                fill(ring, ROWS)
            engine.track(replay=ring)
            if when == "before the run begins":
                fill(ring, ROWS)
            report = engine.restore()
            info = engine.snapshot(0).wait(60)
        assert {f"{name.line:016x}" for name in pool(run_dir)} == {report.line}
        assert len(pool(run_dir)) > 2
        for path in Path(info.path).rglob("segment-*.seg"):
            assert f"{parse_header(path.read_bytes(), str(path)).line:016x}" == report.line


def test_restores_that_bring_nothing_leave_no_records_behind(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with new_ring() as ring, pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(replay=ring)
        engine.restore()
        fill(ring, ROWS)
        engine.snapshot(0).wait(60)
    for _ in range(3):
        with new_ring() as ring, pyengine.SnapshotEngine(run_dir) as engine:
            engine.track(replay=ring)
            assert engine.restore(sanity=lambda: None)
            with pytest.raises(pyengine.errors.SanityCheckError):
                engine.restore(sanity=lambda: False)
    assert len(os.listdir(run_dir / "lines")) == 7
    with new_ring() as ring, pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(replay=ring)
        last = engine.restore()
        engine.snapshot(1).wait(60)
    left = {name.removesuffix(".json") for name in os.listdir(run_dir / "lines")}
    snapshots = pyengine.open_run(run_dir).snapshots
    assert left == {info.line for info in snapshots}
    assert last.line in left


def test_a_ring_that_a_restore_leaves_as_it_is_keeps_its_files(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with new_ring() as ring, pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(counters={"n": 1})
        engine.restore()
        engine.snapshot(0).wait(60)
        engine.track(replay=ring)
        fill(ring, ROWS)
        engine.tick(1)
        while len(pool(run_dir)) < 2:
            engine._look_after_writer()
        engine.restore(allow=["replay"])
        for step in (2, 3):
            engine.snapshot(step).wait(60)
        fill(ring, 2 * ROWS)
        engine.snapshot(4).wait(60)
    assert min(name.first_row for name in pool(run_dir)) >= ROWS
    with new_ring() as again, pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(replay=again, counters={"n": 0})
        engine.restore()
        assert again[again.refs()]["x"].tolist() == list(range(2 * ROWS, 3 * ROWS))


def saved_run(run_dir: Path) -> None:
    with new_ring() as ring, pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(replay=ring)
        engine.restore()
        fill(ring, ROWS)
        engine.snapshot(0).wait(60)


def test_a_restore_waits_for_the_disk_three_times_in_one_hold_of_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    saved_run(run_dir)
    with new_ring() as ring, pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(replay=ring)
        recorder = Recorder()
        monkeypatch.setattr(door, "active", recorder)
        report = engine.restore()
        monkeypatch.undo()
    temporary = run_dir / "lines" / names.temporary_name(2, f"{report.line}.json")
    record = run_dir / "lines" / f"{report.line}.json"
    calls = [(call.op, *call.paths) for call in recorder.ops("link", "fsync", "rename")]
    linked = [call for call in calls if call[0] == "link"]
    assert len(linked) > 2
    assert calls[: len(linked) + 4] == [
        *linked,
        ("fsync", str(temporary)),
        ("fsync", str(run_dir / "segments" / "replay")),
        ("rename", str(temporary), str(record)),
        ("fsync", str(run_dir / "lines")),
    ]
    assert [op for op, *_ in calls].count("fsync") == 3


@pytest.mark.parametrize("op", ["link", "fsync", "rename"])
def test_a_restore_that_cannot_open_its_line_leaves_no_name_in_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    run_dir = tmp_path / "run"
    saved_run(run_dir)
    with new_ring() as ring, pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(replay=ring)
        before = sorted(os.listdir(run_dir / "segments" / "replay"))
        for nth in (1, 2):
            rule = Rule(op=op, action="error", errno="EIO", nth=nth)
            monkeypatch.setattr(door, "active", FaultDoor([rule]))
            if op == "rename" and nth == 2:
                break  # that is a marker's
            with pytest.raises(OSError, match="Input/output"):
                engine.restore()
            assert sorted(os.listdir(run_dir / "segments" / "replay")) == before
            assert [name for name in os.listdir(run_dir / "lines") if name.startswith(".")] == []
            assert len(ring) == 0
        monkeypatch.undo()
        assert engine.restore().global_step == 0
        assert len(ring) == ROWS
