"""One owner at a time: two engines, one process and two; forks that exit and that outlive."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from processes import await_end, await_writers_end, committed, writers
from program import Plan, Training, run

import pyengine
from pyengine import errors


def hold(send: Any, run_dir: str) -> None:
    """Own a run until killed."""
    with pyengine.SnapshotEngine(run_dir) as engine:
        training = Training()
        training.track(engine)
        engine.restore()
        training.step(0)
        engine.snapshot(0).wait(60)
        send(("holding", engine.writer_pid))
        signal.pause()


def test_a_second_engine_in_one_process_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "alias").symlink_to("run")
    with pyengine.SnapshotEngine(tmp_path / "run"):
        with pytest.raises(errors.RunBusyError) as caught:
            pyengine.SnapshotEngine(tmp_path / "alias")
        assert caught.value.pid == os.getpid()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        assert engine.generation == 2


def test_a_second_engine_in_another_process_is_refused(start: Any, tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    owner = start(hold, run_dir)
    owner.receive("holding")
    with pytest.raises(errors.RunBusyError) as caught:
        pyengine.SnapshotEngine(run_dir)
    assert caught.value.pid == owner.pid
    assert caught.value.host
    assert caught.value.since
    owner.signal(signal.SIGKILL)
    assert owner.join() == -9
    with pyengine.SnapshotEngine(run_dir) as engine:
        assert engine.generation == 2


def test_a_start_waits_for_the_writer_of_a_dead_trainer(start: Any, tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    slow = {
        "op": "rename",
        "path": "*s0001/manifest.json",
        "process": "*pyengine.writer*",
        "action": "delay",
        "seconds": 1.0,
    }
    child = start(run, run_dir, Plan(6, snapshots=(5,), faults=(slow,), kill_self_at=5))
    assert child.join() == -9
    training = Training()
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        assert engine.restore().global_step == 5


def stage_for_a_writer_that_starts(send: Any, run_dir: str) -> None:
    training = Training()
    engine = pyengine.SnapshotEngine(run_dir)
    training.track(engine)
    engine.restore()
    training.step(5)
    assert engine.writer_pid is not None
    os.kill(engine.writer_pid, signal.SIGKILL)
    await_end(engine.writer_pid)
    late = {
        "op": "open",
        "path": "*/generations/0001",
        "process": "*pyengine.writer*",
        "action": "delay",
        "seconds": 1.0,
    }
    os.environ["PYENGINE_FAULT_PLAN"] = json.dumps([late])
    engine.snapshot(5)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_start_waits_for_a_writer_that_has_hardly_begun(start: Any, tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    assert start(stage_for_a_writer_that_starts, run_dir).join() == -9
    training = Training()
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        assert engine.restore().global_step == 5


def test_a_frozen_writer_of_a_dead_trainer_is_ended(start: Any, token: str, tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    owner = start(hold, run_dir)
    writer = owner.receive("holding")[1]
    os.kill(writer, signal.SIGSTOP)
    owner.signal(signal.SIGKILL)
    assert owner.join() == -9
    with pyengine.SnapshotEngine(run_dir, drain_wait=0.5) as engine:
        assert writer not in writers(token)
        assert engine.generation == 2


def test_a_busy_run_leaves_the_caller_nothing(start: Any, token: str, tmp_path: Path) -> None:
    owner = start(hold, str(tmp_path / "run"))
    mine = owner.receive("holding")[1]
    fds = set(os.listdir("/proc/self/fd"))
    with pytest.raises(errors.RunBusyError):
        pyengine.SnapshotEngine(tmp_path / "run")
    assert set(os.listdir("/proc/self/fd")) == fds
    assert writers(token) == [mine]


def test_a_forked_child_that_exits_disturbs_nothing(tmp_path: Path) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.restore()
        training.step(0)
        child = os.fork()
        if child == 0:
            status = 0
            try:
                for use in (lambda: engine.tick(0), lambda: engine.snapshot(0), engine.restore):
                    with pytest.raises(errors.ForkedProcessError):
                        use()
                engine.close()
                del engine, training
            except BaseException:
                status = 1
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        training.step(1)
        assert engine.snapshot(1).wait(60).global_step == 1


def fork_and_die(send: Any, run_dir: str) -> None:
    training = Training()
    engine = pyengine.SnapshotEngine(run_dir)
    training.track(engine)
    engine.restore()
    for step in range(6):
        training.step(step)
    worker = os.fork()
    if worker == 0:
        # An environment worker: it outlives its owner, holding what it inherited.
        signal.pause()
    engine.snapshot(5)
    send(("worker", worker))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_forked_child_that_outlives_its_owner_keeps_nothing(
    start: Any, token: str, tmp_path: Path
) -> None:
    run_dir = str(tmp_path / "run")
    owner = start(fork_and_die, run_dir)
    worker = owner.receive("worker")[1]
    assert owner.join() == -9
    await_writers_end(token)
    try:
        with pyengine.SnapshotEngine(run_dir) as engine:
            training = Training()
            training.track(engine)
            assert engine.restore().global_step == 5
        maps = Path(f"/proc/{worker}/maps").read_text()
        fds = [os.readlink(entry) for entry in Path(f"/proc/{worker}/fd").iterdir()]
        assert "/dev/shm" not in maps
        assert not [fd for fd in fds if "/dev/shm" in fd or run_dir in fd]
    finally:
        os.kill(worker, signal.SIGKILL)
    assert len(committed(run_dir)) == 1


def test_a_rank_is_refused_the_run_of_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANK", "0")
    pyengine.SnapshotEngine(tmp_path / "run").close()
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(errors.RunDirectoryError, match="rank 1"):
        pyengine.SnapshotEngine(tmp_path / "run")
