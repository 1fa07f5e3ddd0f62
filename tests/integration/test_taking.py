"""When and how snapshots are taken: triggers, busy slots, errors before the cut, handlers."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import committed
from program import Training

import pyengine
from pyengine import errors
from pyengine.engine.buffers import StagingBuffers, StagingSlot
from pyengine.shm.states import SnapshotState, StagingState


def stop_writer(engine: pyengine.SnapshotEngine) -> int:
    pid = engine.writer_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_a_tick_takes_a_snapshot_at_each_crossing(tmp_path: Path) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run", every_steps=10, budget=None) as engine:
        training.track(engine)
        engine.restore()
        taken = []
        for step in range(0, 60, 4):
            training.step(step)
            pending = engine.tick(step)
            if pending is not None:
                assert pending.wait(60).global_step == step
                taken.append(step)
    assert taken == [12, 20, 32, 40, 52]
    assert len(committed(tmp_path / "run")) == 3


def test_a_snapshot_that_commits_just_before_its_slot_is_claimed_again_is_not_forgotten(
    run: tuple[pyengine.SnapshotEngine, Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, training = run
    claim = StagingBuffers.claim

    def claim_late(buffers: StagingBuffers, sequence: int) -> StagingSlot | None:
        deadline = time.monotonic() + 60
        while any(slot.entry.staging[1] != StagingState.FREE for slot in buffers.slots):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return claim(buffers, sequence)

    monkeypatch.setattr(StagingBuffers, "claim", claim_late)
    taken = []
    for step in range(3):
        training.step(step)
        taken.append(engine.snapshot(step))
    engine.close(timeout=60)
    assert [pending.state for pending in taken] == [SnapshotState.COMMITTED] * 3


def test_a_metric_given_to_tick_decides_which_snapshot_stays(tmp_path: Path) -> None:
    training = Training()
    with pyengine.SnapshotEngine(
        tmp_path / "run", every_steps=1, budget=None, keep_last=1, keep_best="reward"
    ) as engine:
        training.track(engine)
        engine.restore()
        for step, reward in enumerate([1.0, 5.0, 2.0, 3.0], start=1):
            pending = engine.tick(step, metrics={"reward": reward})
            assert pending is not None
            pending.wait(60)
    found = pyengine.open_run(tmp_path / "run").snapshots
    assert [(info.global_step, info.metrics) for info in found] == [
        (2, {"reward": 5.0}),
        (4, {"reward": 3.0}),
    ]


def test_metrics_are_asked_for_only_when_a_snapshot_is_taken(
    run: tuple[pyengine.SnapshotEngine, Training],
) -> None:
    asked: list[int] = []

    def metrics() -> dict[str, float]:
        asked.append(1)
        return {"reward": 2.5}

    engine, _ = run
    assert engine.tick(1, metrics) is None
    assert asked == []
    engine._taker.wish()
    pending = engine.tick(2, metrics)
    assert pending is not None
    assert pending.wait(60).metrics == {"reward": 2.5}
    assert asked == [1]


def test_busy_slots_leave_snapshots_out_and_say_so_from_the_second_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run", every_steps=1, budget=None) as engine:
        training.track(engine)
        engine.restore()
        pid = stop_writer(engine)
        try:
            first = [engine.tick(step) for step in (1, 2)]
            assert None not in first
            with caplog.at_level(logging.WARNING, logger="pyengine"):
                assert engine.tick(3) is None
                assert "left out" not in caplog.text
                assert engine.tick(4) is None
                assert "2 in a row were left out" in caplog.text
                assert [engine.tick(step) for step in range(5, 11)] == [None] * 6
                assert caplog.text.count("were left out") == 3, "of 2, 4 and 8"
        finally:
            os.kill(pid, signal.SIGCONT)
        for pending in first:
            assert pending is not None
            pending.wait(60)
        taken = engine.tick(11)
        assert taken is not None
        assert taken.wait(60)


def test_by_policy_a_tick_waits_for_a_slot(tmp_path: Path) -> None:
    training = Training()
    with pyengine.SnapshotEngine(
        tmp_path / "run", every_steps=1, budget=None, when_busy="wait"
    ) as engine:
        training.track(engine)
        engine.restore()
        assert all(engine.tick(step) is not None for step in range(1, 12))
    assert committed(tmp_path / "run")[-1].startswith("step-00000011")


def test_what_raises_while_capturing_stages_nothing(
    run: tuple[pyengine.SnapshotEngine, Training],
) -> None:
    engine, training = run
    training.step(0)
    training.counters["bad"] = lambda: None
    for _ in range(4):  # more often than there are slots
        with pytest.raises(errors.CaptureError, match="counters"):
            engine.snapshot(0)
    for entry in engine._session.control.entries:
        assert entry.staging[1] == StagingState.FREE
        assert entry.snapshot[1] in (SnapshotState.NONE, SnapshotState.CANCELLED)
    del training.counters["bad"]
    assert engine.snapshot(0).wait(60)


def test_parameters_of_no_tracked_module_are_refused(tmp_path: Path) -> None:
    training = Training()
    others = [torch.nn.Linear(2, 2) for _ in range(2)]
    training.optimizer.add_param_group({"params": list(others[0].parameters())})
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        with pytest.raises(errors.UncoveredParameterError):
            engine.restore()
        engine.track(other=others[0])
        engine.restore()
        training.optimizer.add_param_group({"params": list(others[1].parameters())})
        with pytest.raises(errors.UncoveredParameterError):
            engine.snapshot(0)
        engine.track(another=others[1])
        assert engine.snapshot(0).wait(60)


def test_a_capture_that_grew_gets_a_larger_slot(
    run: tuple[pyengine.SnapshotEngine, Training],
) -> None:
    engine, _ = run
    extra = {"log": np.zeros(10)}
    engine.track(extra=extra)
    for size in (10, 100_000, 10, 2_000_000, 5):
        extra["log"] = np.arange(float(size))
        info = engine.snapshot(size).wait(60)
        state = pyengine.load(info.path, only=["extra"])["extra"]
        assert np.array_equal(state["log"], extra["log"])


def test_a_snapshot_asked_for_in_a_signal_handler_is_taken_at_the_next_tick(
    run: tuple[pyengine.SnapshotEngine, Training],
) -> None:
    engine, training = run
    asked: list[Any] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: asked.append(engine.snapshot(1)))
    try:
        training.step(1)
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert asked[0].state == SnapshotState.NONE
    with pytest.raises(TimeoutError):
        asked[0].wait(0)
    training.step(2)
    assert engine.tick(2) is asked[0]
    assert asked[0].wait(60).global_step == 2
    assert engine.tick(3) is None


def test_threads_may_insert_while_snapshots_are_taken(
    run: tuple[pyengine.SnapshotEngine, Training],
) -> None:
    engine, training = run
    done = threading.Event()
    inserted = 0

    def collect() -> None:
        nonlocal inserted
        while not done.is_set():
            training.insert(inserted)
            inserted += 1

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        infos = [engine.snapshot(step).wait(60) for step in range(8)]
    finally:
        done.set()
        collector.join()
    assert len(infos) == 8
    for path in [info.path for info in infos[-3:]]:
        check_rows(path)


def check_rows(path: str) -> None:
    from pyengine.catalog.verify import verify_snapshot

    assert verify_snapshot(path) == []


ABANDONED = """
import sys, torch, pyengine
net = torch.nn.Linear(2, 2)
engine = pyengine.SnapshotEngine(sys.argv[1])
engine.track(policy=net)
engine.restore()
engine.snapshot(7)
"""


def test_the_end_of_the_program_closes_the_engine(tmp_path: Path) -> None:
    root = Path(pyengine.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", ABANDONED, tmp_path / "run"],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert committed(tmp_path / "run") == ["step-00000007.g0001.s0001"]


def test_close_takes_a_final_snapshot_and_ends_everything(tmp_path: Path) -> None:
    training = Training()
    engine = pyengine.SnapshotEngine(tmp_path / "run")
    training.track(engine)
    engine.restore()
    training.step(0)
    engine.close(final=0)
    assert committed(tmp_path / "run") == ["step-00000000.g0001.s0001"]
    for call in (lambda: engine.tick(1), lambda: engine.snapshot(1), engine.restore):
        with pytest.raises(errors.ClosedError):
            call()
    training.step(1)  # the ring works on without an engine


def test_a_schema_of_any_size_reaches_the_writer(tmp_path: Path) -> None:
    names = [f"{number:04d}{'x' * 57}" for number in range(1000)]
    ring = pyengine.ReplayBuffer(dict.fromkeys(names, ((), "float32")), capacity=64)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(replay=ring)
        engine.restore()
        ring.add(dict.fromkeys(names, 1.0))
        assert engine.snapshot(0).wait(60)


@pytest.mark.parametrize("call", ["restore", "close", "wait"])
def test_what_would_wait_for_its_own_tick_is_an_error(tmp_path: Path, call: str) -> None:
    engine = pyengine.SnapshotEngine(tmp_path / "run")
    calls = {
        "restore": engine.restore,
        "close": engine.close,
        "wait": lambda: engine.snapshot(7).wait(),
    }
    caught: list[type[Exception]] = []

    def get() -> int:
        try:
            calls[call]()
        except errors.PyengineError as error:
            caught.append(type(error))
        return 1

    with engine:
        engine.track(environment=pyengine.EnvironmentState(get=get, set=lambda state: None))
        engine.restore()
        assert engine.snapshot(1).wait(60)
    assert caught == [errors.NestedCallError]


def test_a_final_snapshot_that_nobody_takes_is_told(tmp_path: Path) -> None:
    engine = pyengine.SnapshotEngine(tmp_path / "run")
    assert "generation 1" in repr(engine)
    engine.track(counters={"n": 1})
    engine.restore()
    engine.close(final=3)
    engine.close()
    assert repr(engine) == "SnapshotEngine(closed)"
    with pytest.raises(errors.ClosedError, match="no final snapshot of step 4"):
        engine.close(final=4)
    for _ in range(3):  # a script that has ended, started again
        engine = pyengine.SnapshotEngine(tmp_path / "run")
        engine.track(counters={"n": 0})
        assert engine.restore().next_step == 4
        engine.close(final=3)
    assert len(committed(tmp_path / "run")) == 1
