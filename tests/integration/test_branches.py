"""A branch goes on as its source would have, and neither run disturbs the other; gc takes nothing
that a restore could still use."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from processes import await_writers_end, committed
from program import LANES, Plan, run, tracking

import pyengine
from pyengine.catalog.branch import branch_run
from pyengine.catalog.garbage import collect_garbage
from pyengine.catalog.verify import verify_snapshot
from pyengine.errors import RunBusyError


def _train(engine: pyengine.SnapshotEngine, training: Any, first: int, last: int) -> None:
    for step in range(first, last):
        training.step(step)
        engine.tick(step)
        engine.snapshot(step).wait(60)


def test_a_branch_goes_on_bit_for_bit_beside_its_living_source(tmp_path: Path) -> None:
    source, new = tmp_path / "run", tmp_path / "new"
    with tracking(source, 0, keep_last=2) as (engine, training):
        engine.restore()
        for step in range(50):
            training.step(step)
        engine.snapshot(49).wait(60)
        made = branch_run(f"{source}@49", str(new))
        saved = training.digest()
        _train(engine, training, 50, 53)
        future = training.digest()
        with tracking(new, 7) as (other, replica):
            report = other.restore()
            assert (report.next_step, replica.digest()) == (50, saved)
            assert report.run_dir == str(new)
            _train(other, replica, 50, 53)
            assert replica.digest() == future
    assert made.snapshot not in committed(source), "it was pruned there"
    assert verify_snapshot(str(new / "snapshots" / made.snapshot)) == []
    assert [len(committed(path)) for path in (source, new)] == [2, 4], "3 and the restored one"


def test_retention_in_a_branch_counts_from_its_first_snapshot(tmp_path: Path) -> None:
    source, new = tmp_path / "run", tmp_path / "new"
    with tracking(source, 0, keep_last=9) as (engine, training):
        engine.restore()
        _train(engine, training, 0, 4)
    before = committed(source)
    branch_run(f"{source}@1", str(new))
    for start in range(3):
        with tracking(new, 7, keep_last=2) as (engine, training):
            first = engine.restore().next_step
            assert first == 2 + 2 * start
            _train(engine, training, first, first + 2)
        steps = [int(name[5:13]) for name in committed(new)]
        assert steps[-2:] == [first, first + 1]
        assert len(steps) <= 3, "the last two, and the newest that was restored"
    assert committed(source) == before


def test_gc_leaves_a_dead_trainers_rows_to_be_taken_up(
    start: Any, token: str, tmp_path: Path
) -> None:
    run_dir = str(tmp_path / "run")
    plan = Plan(steps=200, snapshots=(19,), wait_for=(19,), kill_self_at=39)
    child = start(run, run_dir, plan)
    child.receive("snapshot")
    with pytest.raises(RunBusyError):
        collect_garbage(run_dir, delete=True)
    assert child.join() == -signal.SIGKILL
    await_writers_end(token)
    unfinished = os.path.join(run_dir, "snapshots", "step-00000030.g0001.s0009")
    os.mkdir(unfinished)
    found = collect_garbage(run_dir, delete=True)
    assert [item.path for item in found.items] == [unfinished]
    with tracking(run_dir) as (engine, training):
        report = engine.restore(replay="latest")
        assert report.global_step == 19
        assert training.ring.total_count.tolist() == [40] * LANES
