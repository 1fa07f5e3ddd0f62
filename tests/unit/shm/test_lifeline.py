"""The lifeline: what a supervisor sees of its trainers, with real processes at both ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pyengine.shm.lifeline import LIFELINE_BYTES, SLOTS, Lifeline
from pyengine.supervisor.watch import Watch


@pytest.fixture
def watch(monkeypatch):
    watch = Watch()
    monkeypatch.setenv("PYENGINE_LIFELINE", watch.address)
    yield watch
    watch.close()


def test_a_trainer_is_seen_with_its_ticks_runs_and_last_word(watch):
    assert watch.trainers() == []
    lifeline = Lifeline.attach()
    before = watch.beats()
    lifeline.tick(41)
    lifeline.tick(42)
    lifeline.add_run("/runs/a", 3)
    lifeline.add_run("/runs/b", 1)
    lifeline.add_run("/runs/a", 4)
    lifeline.report(ValueError("x" * 100_000))
    (seen,) = watch.trainers()
    assert (seen.pid, seen.step, watch.beats() - before) == (os.getpid(), 42, 2)
    assert watch.runs() == {"/runs/a": 4, "/runs/b": 1}
    report, step = watch.last_word()
    assert (report["type"], step) == ("ValueError", 42)


def _longest_path(number):
    """A path as long as the system takes, of what text formats escape, and of no text at all."""
    name = b'"\\\n\x01\xff' + "运行".encode() * 41
    path = (b"/" + name) * 16 + b"/%d" % number
    return os.fsdecode(path + b"x" * (4095 - len(path)))


def test_runs_of_any_path_are_told_and_what_has_no_room_is_said_to_be_untold(watch, caplog):
    lifeline = Lifeline.attach()
    expected = {_longest_path(number): number for number in range(6)}
    for path, generation in expected.items():
        assert len(os.fsencode(path)) == 4095
        lifeline.add_run(path, generation)
    assert watch.runs() == expected
    assert (watch.untold_runs(), caplog.records) == (0, [])
    lifeline.report(ValueError("behind them"))
    lifeline.add_run(_longest_path(6), 6)
    assert watch.runs() == expected
    assert watch.untold_runs() == 1
    assert "--run" in caplog.text
    assert watch.last_word()[0]["message"] == "behind them"


def test_a_slots_next_owner_has_not_ticked_yet_and_is_a_sign_of_life(watch):
    code = (
        "from pyengine.shm.lifeline import Lifeline\n"
        "line = Lifeline.attach(); line.tick(7); line.tick(8)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert [trainer.ticks for trainer in watch.trainers()] == [2]
    assert watch.ticks() == 0, "it is dead"
    before = watch.beats()
    lifeline = Lifeline.attach()
    (seen,) = watch.trainers()
    assert (seen.pid, seen.ticks, seen.step) == (os.getpid(), 0, None)
    assert watch.beats() > before
    before = watch.beats()
    lifeline.restored(9)
    assert watch.beats() > before
    assert (watch.ticks(), watch.last_word()[1]) == (0, 9)
    lifeline.tick(10)
    assert (watch.ticks(), watch.last_word()[1]) == (1, 10)


def test_a_trainer_sees_that_its_supervisor_has_ended(monkeypatch):
    code = (
        "import sys; from pyengine.supervisor.watch import Watch\n"
        "watch = Watch(); print(watch.address, flush=True); sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as supervisor:
        monkeypatch.setenv("PYENGINE_LIFELINE", supervisor.stdout.readline().strip())
        lifeline = Lifeline.attach()
        assert not lifeline.is_alone
        supervisor.kill()
        supervisor.wait(30)
        assert lifeline.is_alone
        lifeline.tick(1)  # its memory is there for whoever has mapped it


def test_a_long_chain_of_errors_is_still_a_report(watch):
    lifeline = Lifeline.attach()
    error = None
    for depth in range(50):
        kind = type("E" * 500, (RuntimeError,), {})
        error, cause = kind("\0é" * 3000 + str(depth)), error
        error.__cause__ = cause
    lifeline.report(error)
    assert watch.last_word()[0]["type"] == "E" * 64


def test_each_process_has_a_slot_and_a_dead_ones_is_used_again(watch):
    code = (
        "import sys; from pyengine.shm.lifeline import Lifeline\n"
        "line = Lifeline.attach(); line.tick(7); line.add_run('/x', 2); print('on', flush=True)\n"
        "sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    children = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == b"on\n"
    pids = {child.pid for child in children}
    assert {trainer.pid for trainer in watch.trainers()} == pids
    assert set(watch.send(signal.SIGKILL)) == pids
    for child in children:
        assert child.wait(30) == -signal.SIGKILL
        child.stdin.close()
        child.stdout.close()
    assert watch.send(signal.SIGTERM) == []
    assert watch.runs() == {"/x": 2}, "what a dead one said stays"
    lifeline = Lifeline.attach()
    assert len(watch.trainers()) == 2
    assert os.getpid() in {trainer.pid for trainer in watch.trainers()}
    lifeline.tick(1)


def test_a_forked_child_cannot_make_its_parent_look_alive(watch):
    lifeline = Lifeline.attach()
    before = watch.beats()
    pid = os.fork()
    if pid == 0:
        for step in range(100):
            lifeline.tick(step)
        os._exit(0)
    os.waitpid(pid, 0)
    assert watch.beats() == before
    lifeline.tick(0)
    assert watch.beats() == before + 1


@pytest.mark.parametrize(
    "address", ["", "nonsense", "1:3:" + "0" * 32, "999999999:3:" + "0" * 32, "{pid}:{fd}:00"]
)
def test_an_address_that_leads_nowhere_is_as_none(watch, monkeypatch, address):
    pid, fd, _ = watch.address.split(":")
    monkeypatch.setenv("PYENGINE_LIFELINE", address.format(pid=pid, fd=fd))
    assert Lifeline.attach() is None
    assert watch.trainers() == []


def test_the_wrong_token_and_another_file_are_refused(watch, monkeypatch, tmp_path):
    pid, fd, token = watch.address.split(":")
    monkeypatch.setenv("PYENGINE_LIFELINE", f"{pid}:{fd}:{token[::-1]}")
    assert Lifeline.attach() is None
    with open(tmp_path / "file", "w+b") as file:
        file.truncate(LIFELINE_BYTES)
        monkeypatch.setenv("PYENGINE_LIFELINE", f"{pid}:{file.fileno()}:{token}")
        assert Lifeline.attach() is None


def test_more_trainers_than_slots_run_unseen(watch):
    held = [Lifeline.attach() for _ in range(SLOTS)]
    assert None not in held
    assert Lifeline.attach() is None
