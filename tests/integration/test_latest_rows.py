"""`replay="latest"`: no row is lost with a dead trainer, one open segment a lane with a machine."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import await_writers_end, leftovers
from program import LANES, ROWS_PER_LANE, Plan, Training, run, tracking

import pyengine


def train_and_die(
    send: Any, run_dir: str, steps: int, restore: dict[str, Any], fault: dict[str, Any] | None
) -> None:
    """Restore, insert rows, and die by SIGKILL after the last; no snapshot is taken."""
    training = Training()
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        if fault is not None:
            from pyengine.fs import door, faults

            door.active = faults.FaultDoor([faults.Rule(**fault)])
        report = engine.restore(**restore)
        first = int(training.ring.total_count[0])
        send(("restored", report.rows, first))
        for number in range(first, first + steps):
            training.insert(number)
        engine.tick(report.next_step)
        os.kill(os.getpid(), signal.SIGKILL)


def numbers(training: Training) -> list[list[int]]:
    """Return the numbers in the rows of each lane, oldest first; none may be torn."""
    refs = training.ring.refs()
    rows = training.ring[refs]
    assert np.array_equal(rows["check"], rows["number"] * 3 + 1)
    return [rows["number"][refs % LANES == lane].tolist() for lane in range(LANES)]


def window(end: int) -> list[list[int]]:
    return [list(range(max(0, end - ROWS_PER_LANE), end))] * LANES


def test_rows_that_the_disk_did_not_take_are_told(start: Any, token: str, tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    full = {"op": "create", "path": "*-part-*", "nth": 2, "times": 0}  # the first is the snapshot's
    full |= {"action": "error", "errno": "ENOSPC", "process": "*pyengine.writer*"}
    plan = Plan(5, snapshots=(3,), wait_for=(3,), kill_self_at=4, faults=(full,))
    assert start(run, run_dir, plan).join() == -signal.SIGKILL
    await_writers_end(token)
    for is_told in (True, True, False):
        with tracking(run_dir) as (engine, _training):
            report = engine.restore(replay="latest")
            told = [note for note in report.notes if "of ring replay to disk" in note]
            assert len(told) == is_told
            assert all("No space left" in note for note in told)
            if engine.generation == 3:  # from this snapshot on what was lost is nobody's
                engine.snapshot(report.next_step).wait(60)


@pytest.mark.parametrize(("snapshot", "end"), [(3, 5), (3, 8), (9, 31), (40, 55), (40, 100)])
def test_a_dead_trainer_loses_no_row(
    start: Any, token: str, tmp_path: Path, snapshot: int, end: int
) -> None:
    run_dir = str(tmp_path / "run")
    plan = Plan(end, snapshots=(snapshot,), wait_for=(snapshot,), kill_self_at=end - 1)
    assert start(run, run_dir, plan).join() == -signal.SIGKILL
    await_writers_end(token)
    with tracking(run_dir) as (engine, training):
        report = engine.restore(replay="latest")
        assert (report.global_step, report.next_step) == (snapshot, snapshot + 1)
        added = min(end - 1 - snapshot, ROWS_PER_LANE) * LANES
        assert f"{added} rows added after the snapshot" in report.component("replay").note
        assert numbers(training) == window(end)
        priorities = training.ring[training.ring.refs()]["priority"]
        assert (priorities[-min(added, LANES) :] == 1.0).all(), (
            "the default of rows it did not know"
        )
        training.insert(end)
        assert training.ring.breaks(0).tolist()[-1:] == [end]
        engine.snapshot(end).wait(60)
        expected = training.digest()
    with tracking(run_dir, seed=9) as (engine, again):
        assert engine.restore(eager=True).global_step == end
        assert again.digest() == expected
        assert numbers(again) == window(end + 1)
    assert leftovers(run_dir) == []


def test_without_being_asked_rows_after_the_snapshot_stay_away(
    start: Any, token: str, tmp_path: Path
) -> None:
    run_dir = str(tmp_path / "run")
    plan = Plan(20, snapshots=(9,), wait_for=(9,), kill_self_at=19)
    assert start(run, run_dir, plan).join() == -signal.SIGKILL
    await_writers_end(token)
    with tracking(run_dir) as (engine, training):
        engine.restore()
        assert numbers(training) == window(10)


def test_a_dead_machine_loses_at_most_one_open_segment_a_lane(
    start: Any, token: str, tmp_path: Path
) -> None:
    run_dir = str(tmp_path / "run")
    # The writer dies when it begins to drain: it holds the rows of open segments only in memory.
    fault = {"op": "open", "path": "*-part-*", "process": "*pyengine.writer*", "nth": 2}
    fault |= {"action": "kill"}
    plan = Plan(30, snapshots=(9,), wait_for=(9,), faults=(fault,), kill_self_at=29)
    assert start(run, run_dir, plan).join() == -signal.SIGKILL
    await_writers_end(token)
    with tracking(run_dir) as (engine, training):
        engine.restore(replay="latest")
        rows = training.ring.header_record()["segment_rows"]
        found = numbers(training)
        for lane in range(LANES):
            end = found[lane][-1] + 1
            assert found[lane] == list(range(end))
            assert 30 - rows < end <= 30


def test_rows_survive_one_death_after_another(start: Any, token: str, tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    plan = Plan(12, snapshots=(5,), wait_for=(5,), kill_self_at=11)
    assert start(run, run_dir, plan).join() == -signal.SIGKILL
    end = 12
    for steps in (3, 0, 9, 1, 25):
        await_writers_end(token)
        child = start(train_and_die, run_dir, steps, {"replay": "latest"}, None)
        assert child.receive("restored")[2] == end
        assert child.join() == -signal.SIGKILL
        end += steps
    await_writers_end(token)
    with tracking(run_dir) as (engine, training):
        assert engine.restore(replay="latest").global_step == 5
        assert numbers(training) == window(end)


def test_the_newest_line_counts_even_where_it_left_rows_behind(
    start: Any, token: str, tmp_path: Path
) -> None:
    run_dir = str(tmp_path / "run")
    plan = Plan(12, snapshots=(5,), wait_for=(5,), kill_self_at=11)
    assert start(run, run_dir, plan).join() == -signal.SIGKILL
    await_writers_end(token)
    child = start(train_and_die, run_dir, 2, {}, None)
    assert child.receive("restored")[2] == 6
    assert child.join() == -signal.SIGKILL
    await_writers_end(token)
    with tracking(run_dir) as (engine, training):
        engine.restore(replay="latest")
        assert numbers(training) == window(8)


@pytest.mark.parametrize("nth", [1, 3, 8])
def test_a_restore_that_is_killed_before_it_adopted_all_is_begun_again(
    start: Any, token: str, tmp_path: Path, nth: int
) -> None:
    run_dir = str(tmp_path / "run")
    plan = Plan(22, snapshots=(5,), wait_for=(5,), kill_self_at=21)
    assert start(run, run_dir, plan).join() == -signal.SIGKILL
    await_writers_end(token)
    fault = {"op": "link", "nth": nth, "action": "kill"}
    assert start(train_and_die, run_dir, 0, {"replay": "latest"}, fault).join() == -signal.SIGKILL
    await_writers_end(token)
    with tracking(run_dir) as (engine, training):
        engine.restore(replay="latest")
        assert numbers(training) == window(22)


def test_damage_ends_a_lane_and_is_told(
    start: Any, token: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = str(tmp_path / "run")
    plan = Plan(30, snapshots=(5,), wait_for=(5,), kill_self_at=29)
    assert start(run, run_dir, plan).join() == -signal.SIGKILL
    await_writers_end(token)
    pool = Path(run_dir, "segments", "replay")
    damaged = min(pool.glob("*-1-16-*.seg"))
    data = bytearray(damaged.read_bytes())
    data[4200] ^= 1
    damaged.write_bytes(data)
    with tracking(run_dir) as (engine, training):
        engine.restore(replay="latest")
        found = numbers(training)
        assert found[0] == found[2] == found[3] == list(range(30))
        assert found[1] == list(range(16))
    assert damaged.name in caplog.text


def test_lines_are_numbered_within_a_generation(tmp_path: Path) -> None:
    with tracking(tmp_path / "run") as (engine, training):
        engine.restore()
        training.step(0)
        engine.snapshot(0).wait(60)
        for _ in range(2):
            engine.restore()
    lines = [json.loads(path.read_text()) for path in (tmp_path / "run" / "lines").iterdir()]
    assert sorted(line["number"] for line in lines) == [1, 2, 3]
