"""The writer takes what its trainer leaves, and as much as that one had once nobody trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trainer_side import WAIT_SECONDS

import pyengine
from pyengine import config
from pyengine.format import names
from pyengine.fs.locks import OfdLock
from pyengine.fs.process import read_status
from pyengine.writer import priority

ROOT = str(Path(pyengine.__file__).parent.parent)

needs_groups = pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="sessions are no scheduling groups here"
)

# argv: run directory, nice of the trainer's group. The last row is in no snapshot: the writer has
# something to drain.
TRAINER = """
import sys
import pyengine
from pyengine.writer.priority import _write_group_nice
_write_group_nice(int(sys.argv[2]))
ring = pyengine.ReplayBuffer(pyengine.Schema({"x": "int64"}), capacity=64)
engine = pyengine.SnapshotEngine(sys.argv[1])
engine.track(replay=ring)
ring.add(x=0)
engine.snapshot(0).wait(60)
ring.add(x=1)
print(engine.writer_pid, flush=True)
sys.stdin.read()
"""

STOPS_IN_ITS_DRAIN = [{"op": "rename", "path": "*-part-*", "action": "stop"}]

Start = Callable[..., tuple[subprocess.Popen[str], int]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a trainer in a session of its own; return it and its writer's pid."""
    trainers: list[subprocess.Popen[str]] = []

    def run(nice: int, plan: object = ()) -> tuple[subprocess.Popen[str], int]:
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(tmp_path / "run"), str(nice)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": ROOT, "PYENGINE_FAULT_PLAN": json.dumps(plan)},
        )
        trainers.append(trainer)
        assert trainer.stdout is not None
        return trainer, int(trainer.stdout.readline())

    yield run
    for trainer in trainers:
        trainer.kill()
        trainer.communicate()


def group_nice(pid: int) -> int:
    return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])


@needs_groups
def test_its_group_yields_to_the_trainers_wherever_that_one_is(start: Start) -> None:
    trainer, writer = start(3)
    assert group_nice(trainer.pid) == 3
    assert group_nice(writer) == 3 + config.WRITER_NICE


@pytest.mark.parametrize(("trainers", "writers"), [(0, config.WRITER_NICE), (17, 19)])
def test_no_group_is_asked_to_be_lower_than_there_is(
    monkeypatch: pytest.MonkeyPatch, trainers: int, writers: int
) -> None:
    written: list[int] = []
    monkeypatch.setattr(priority, "_read_group_nice", lambda pid: trainers)
    monkeypatch.setattr(priority, "_write_group_nice", written.append)
    monkeypatch.setattr(os, "nice", lambda by: None)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *arguments: None)
    monkeypatch.setattr(os, "getsid", lambda pid: os.getpid())
    one = priority.Priority()
    one.yield_to_trainer()
    one.yield_to_nobody()
    assert written == [writers, trainers]


@needs_groups
def test_a_draining_writer_has_the_share_that_its_trainer_had(tmp_path: Path, start: Start) -> None:
    trainer, writer = start(3, STOPS_IN_ITS_DRAIN)
    trainer.kill()
    deadline = time.monotonic() + WAIT_SECONDS
    while not (status := read_status(writer)) or not status.is_stopped:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        assert group_nice(writer) == 3
    finally:
        os.kill(writer, signal.SIGCONT)
    path = tmp_path / "run" / "generations" / names.generation_name(1)
    OfdLock.acquire(str(path), names.WRITER_BYTE, timeout=WAIT_SECONDS).release()


def test_without_such_groups_the_writer_runs_as_it_is(tmp_path: Path) -> None:
    code = """
import builtins, os
from pyengine.writer import priority
def refuse(path, *mode):
    raise FileNotFoundError(path)
builtins.open = refuse
one = priority.Priority()
before = os.getpriority(os.PRIO_PROCESS, 0)
one.yield_to_trainer()
print(os.getpriority(os.PRIO_PROCESS, 0) - before, os.sched_getscheduler(0) == os.SCHED_BATCH)
one.yield_to_nobody()
"""
    end = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": ROOT},
        check=True,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert end.stdout.split() == [str(config.WRITER_NICE), "True"]
