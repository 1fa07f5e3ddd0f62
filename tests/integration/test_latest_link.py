"""`latest` points to a snapshot only once it is durable."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from processes import committed, leftovers
from program import Plan, Training, run

import pyengine
from pyengine.fs.locks import OfdLock


def latest(run_dir: Path) -> str:
    return os.path.basename(os.readlink(run_dir / "latest"))


def test_latest_stays_until_the_commit(start: Any, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    training = Training()
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        engine.restore()
        for step in range(6):
            training.step(step)
        old = engine.snapshot(5).wait(60)
        # `wait` returns once the snapshot is durable; `latest` follows under the same lock.
        OfdLock.acquire(str(run_dir / "lock"), timeout=60).release()
        expected = training.digest()
        stale = run_dir / "snapshots" / ".tmp-g0001-step-00000007.g0001.s0002-1"
        (stale / "model").mkdir(parents=True)
        (stale / "model" / "policy.safetensors").write_bytes(b"half of it")
        assert engine.writer_pid is not None
        os.kill(engine.writer_pid, signal.SIGSTOP)
        for step in range(6, 8):
            training.step(step)
        pending = engine.snapshot(7)
        assert latest(run_dir) == old.name
        assert committed(run_dir) == [old.name]

        copy = tmp_path / "copy" / "snapshots"
        copy.mkdir(parents=True)
        subprocess.run(["cp", "-r", old.path, copy / old.name], check=True)
        child = start(run, str(tmp_path / "copy"), Plan(6))
        assert child.receive("restored")[1:] == (5, expected)
        assert child.join() == 0

        os.kill(engine.writer_pid, signal.SIGCONT)
        new = pending.wait(60)
        assert committed(run_dir) == [old.name, new.name]
    assert latest(run_dir) == new.name
    assert leftovers(run_dir) == []
