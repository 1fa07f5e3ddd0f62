"""A run that is taken from an owner that still lives: the old one can commit nothing any more."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from processes import TIMEOUT, await_end, committed, leftovers
from program import Training

import pyengine
from pyengine import errors
from pyengine.fs.process import read_status

WRITER = {"process": "*pyengine.writer*", "action": "stop"}
BEFORE_THE_CHECK = {**WRITER, "op": "open", "path": "*/lock", "nth": 3}
"""Of this writer: 1 clears up, 2 commits the first snapshot, 3 would commit the second."""
INSIDE_THE_LOCK = {**WRITER, "op": "rename", "path": "*/snapshots/.tmp-*0002-*"}
BEFORE_THE_MANIFEST = {**WRITER, "op": "rename", "path": "*s0002/manifest.json.tmp"}
BEFORE_LATEST = {**WRITER, "op": "rename", "path": "*/.tmp-*latest*", "nth": 2}


def own(send: Any, run_dir: str, fault: dict[str, Any] | None, policy: str) -> None:
    """Own a run with one snapshot and a second under way; go on when told to."""
    told = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: told.set())
    if fault is not None:
        os.environ["PYENGINE_FAULT_PLAN"] = json.dumps([fault])
    training = Training()
    engine = pyengine.SnapshotEngine(run_dir, on_error=policy)  # type: ignore[arg-type]
    training.track(engine)
    engine.restore()
    training.step(0)
    engine.snapshot(0).wait(60)
    training.step(1)
    engine.snapshot(1)
    send(("owned", engine.writer_pid))
    assert told.wait(TIMEOUT)
    try:
        for step in range(2, 8):
            training.step(step)
            engine.snapshot(step).wait(60)
        send(("went on", None))
    except errors.StaleGenerationError as error:
        send(("stale", str(error)))
    try:
        engine.tick(9)
        send(("ticked", None))
    except errors.StaleGenerationError:
        send(("refused", None))
    engine.close(timeout=5)


def await_stop(pid: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not (status := read_status(pid)) or not status.is_stopped:
        assert time.monotonic() < deadline, "the writer did not stop"
        time.sleep(0.005)


def settled(run_dir: str) -> list[str]:
    """Return what is committed, once `latest` points to the newest of it."""
    found = committed(run_dir)
    deadline = time.monotonic() + TIMEOUT
    while os.path.basename(os.readlink(f"{run_dir}/latest")) != found[-1]:
        assert time.monotonic() < deadline, "`latest` stays behind"
        time.sleep(0.01)
    return found


def restored(run_dir: str) -> dict[str, str]:
    """Return the digest of what a new start finds."""
    with pyengine.SnapshotEngine(run_dir) as engine:
        training = Training(seed=5)
        training.track(engine)
        engine.restore()
        return training.digest()


def start_owner(start: Any, run_dir: str, fault: dict[str, Any] | None, policy: str = "raise"):
    owner = start(own, run_dir, fault, policy)
    return owner, owner.receive("owned")[1]


@pytest.mark.parametrize("policy", ["raise", "warn"])
def test_the_former_owner_learns_it_and_changes_nothing(
    start: Any, tmp_path: Path, policy: str
) -> None:
    run_dir = str(tmp_path / "run")
    owner, _ = start_owner(start, run_dir, None, policy)
    with pyengine.SnapshotEngine(run_dir, takeover=True) as engine:
        training = Training(seed=4)
        training.track(engine)
        assert engine.restore().global_step in (0, 1)
        before = committed(run_dir)
        owner.signal(signal.SIGUSR1)
        assert "generation 2 owns the run" in owner.receive("stale")[1]
        owner.receive("refused")
        assert owner.join() == 0
        assert committed(run_dir) == before
        training.step(2)
        newest = engine.snapshot(2).wait(60)
        digest = training.digest()
    assert settled(run_dir)[-1] == newest.name
    assert restored(run_dir) == digest
    assert leftovers(run_dir) == []


def test_a_writer_frozen_before_the_check_is_turned_away(start: Any, tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    _, writer = start_owner(start, run_dir, BEFORE_THE_CHECK)
    await_stop(writer)
    with pyengine.SnapshotEngine(run_dir, takeover=True, drain_wait=2) as engine:
        training = Training(seed=4)
        training.track(engine)
        assert engine.restore().global_step == 0
        # It lives, so that what it has begun stays where it is.
        assert [name for name in leftovers(run_dir) if ".g0001" in name or "0001-" in name]
        training.step(1)
        engine.snapshot(1).wait(60)
        before = settled(run_dir)
        log = Path(run_dir, "generations", "0001.log")
        os.kill(writer, signal.SIGCONT)
        deadline = time.monotonic() + TIMEOUT
        while "generation 2 owns the run" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert settled(run_dir) == before
        training.step(2)
        engine.snapshot(2).wait(60)


@pytest.mark.parametrize("moment", [INSIDE_THE_LOCK, BEFORE_THE_MANIFEST, BEFORE_LATEST])
def test_a_writer_frozen_inside_the_commit_lock_is_ended_first(
    start: Any, tmp_path: Path, moment: dict[str, Any]
) -> None:
    run_dir = str(tmp_path / "run")
    owner, writer = start_owner(start, run_dir, moment)
    await_stop(writer)
    with pytest.raises(errors.RunBusyError, match="in use by"):
        pyengine.SnapshotEngine(run_dir)
    with pyengine.SnapshotEngine(run_dir, takeover=True, drain_wait=0.5) as engine:
        await_end(writer)
        training = Training(seed=4)
        training.track(engine)
        # Before its manifest the second was no snapshot; after it, it was.
        assert engine.restore().global_step == (1 if moment is BEFORE_LATEST else 0)
        training.step(2)
        engine.snapshot(2).wait(60)
        digest = training.digest()
        before = settled(run_dir)
        owner.signal(signal.SIGUSR1)  # its engine starts another writer, which is turned away
        owner.receive("stale")
        assert owner.join() == 0
        assert settled(run_dir) == before
    assert restored(run_dir) == digest
    assert leftovers(run_dir) == []


def test_who_takes_over_waits_for_the_writer_of_a_dead_owner(start: Any, tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    slow = {**WRITER, "op": "rename", "path": "*s0002/manifest.json.tmp"}
    slow |= {"action": "delay", "seconds": 1.0}
    owner, _ = start_owner(start, run_dir, slow)
    owner.signal(signal.SIGKILL)
    assert owner.join() == -signal.SIGKILL
    with pyengine.SnapshotEngine(run_dir, takeover=True) as engine:
        Training(seed=4).track(engine)
        assert engine.restore().global_step == 1
