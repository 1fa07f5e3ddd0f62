"""Two runs on one host: one lives, the other is killed again and again and leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import TIMEOUT, await_writers_end, committed, leftovers, marked_processes, writers

import pyengine
from pyengine.catalog.generation import generation_path
from pyengine.fs import process
from pyengine.fs.locks import OfdLock

KILLS = 20
ROWS = 400


def new_ring() -> pyengine.ReplayBuffer:
    return pyengine.ReplayBuffer({"x": "int64", "payload": ((512,), "uint8")}, capacity=ROWS)


def add(ring: pyengine.ReplayBuffer, count: int) -> None:
    first = int(ring.total_count)
    payload = np.zeros((count, 512), np.uint8)
    ring.extend(x=np.arange(first, first + count), payload=payload)


def train_until_killed(send: Any, run_dir: str, forks: bool) -> None:
    with new_ring() as ring, pyengine.SnapshotEngine(run_dir, every_steps=1, budget=None) as engine:
        counters = {"step": -1}
        engine.track(replay=ring, counters=counters)
        report = engine.restore()
        assert counters["step"] == (report.global_step if report else -1)
        if forks:
            worker = os.fork()
            if worker == 0:  # an environment worker that outlives its owner
                signal.pause()
        send(("begun", worker if forks else 0))
        for step in range(report.next_step, 1_000_000):
            counters["step"] = step
            add(ring, 17)
            engine.tick(step)
            send(("step", step))
            time.sleep(0.002)


def files_of(run_dir: Path) -> dict[str, tuple[int, int, int]]:
    """Return size, time and inode of every file, the log of the living writer excepted."""
    found = {}
    for path in sorted(run_dir.rglob("*")):
        if path.suffix != ".log":
            status = path.lstat()
            found[str(path)] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def arenas(pids: list[int]) -> set[int]:
    """Return the inodes of all shared memory that processes hold."""
    found = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since
                if os.readlink(entry).startswith(("/dev/shm/", "/memfd:pyengine")):
                    found.add(os.stat(entry).st_ino)
    return found


@pytest.mark.timeout(300)
def test_a_run_that_was_killed_many_times_leaves_nothing_and_disturbs_nobody(
    start: Any, token: str, tmp_path: Path
) -> None:
    living, dying = tmp_path / "living", tmp_path / "dying"
    rng = random.Random(7)
    workers = []
    with new_ring() as ring, pyengine.SnapshotEngine(living) as engine:
        engine.track(replay=ring)
        engine.restore()
        add(ring, 300)
        info = engine.snapshot(0).wait(60)
        before = files_of(Path(info.path)), files_of(living / "generations")
        mine = arenas([os.getpid()])
        for kill in range(KILLS):
            child = start(train_until_killed, str(dying), kill % 7 == 3)
            worker = child.receive("begun")[1]
            workers += [worker] if worker else []
            for _ in range(rng.randrange(1, 30)):
                child.receive("step")
            child.signal(signal.SIGKILL)
            assert child.join() == -signal.SIGKILL
        try:
            # Its writers are still at it; the next start waits for the last of them.
            with new_ring() as again, pyengine.SnapshotEngine(dying) as other:
                counters = {"step": -1}
                other.track(replay=again, counters=counters)
                report = other.restore()
                assert report.global_step == counters["step"]
                assert other.generation == KILLS + 1
                other.snapshot(report.next_step).wait(60)
                await_end_of_commit(dying)  # a plain copy cannot follow what is being deleted
                assert len(committed(dying)) <= 4, "three, and the one that was restored"
                copied_run(dying, tmp_path / "copy", report.next_step)
                # What is held is held by two trainers (this process) and their two writers.
                alive = set(writers(token))
                assert alive == {engine.writer_pid, other.writer_pid}
                held = arenas([os.getpid(), *alive])
                assert len(held) <= 2 * len(mine)
                assert arenas(workers) == set()
                other.snapshot(report.next_step + 1).wait(60)
            await_end_of_commit(dying)
            assert leftovers(dying) == []
            assert (files_of(Path(info.path)), files_of(living / "generations")) == before
            rows = ring[ring.refs()]["x"]
            assert rows.tolist() == list(range(300))
            assert engine.snapshot(1).wait(60).global_step == 1
        finally:
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
    await_writers_end(token)
    assert [pid for pid in marked_processes(token) if pid not in workers] == []


def copied_run(run_dir: Path, copy: Path, step: int) -> None:
    """A copy of a run that lives is a run of its own, and free."""
    shutil.copytree(run_dir, copy, symlinks=True)
    with new_ring() as ring, pyengine.SnapshotEngine(copy) as engine:
        counters = {"step": -1}
        engine.track(replay=ring, counters=counters)
        assert engine.restore().global_step == step
        engine.snapshot(step + 1).wait(60)
    assert leftovers(copy) == []


def await_end_of_commit(run_dir: Path) -> None:
    """Wait until what a commit does after its snapshot is durable has been done: prune, delete."""
    OfdLock.acquire(str(run_dir / "lock"), timeout=TIMEOUT).release()
    deadline = time.monotonic() + TIMEOUT
    while leftovers(run_dir):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_that_has_the_pid_of_a_dead_owner_is_not_taken_for_it(tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    pyengine.SnapshotEngine(run_dir).close()
    later = process.current().to_dict()
    later["start_ticks"] -= 1
    with open(generation_path(run_dir, 1), "a", encoding="utf-8") as file:
        for role in ("owner", "writer"):
            file.write(json.dumps({"role": role, **later, "since": "before"}) + "\n")
    with pyengine.SnapshotEngine(run_dir) as engine:
        assert engine.generation == 2
