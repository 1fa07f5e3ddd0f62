"""The supervisor's parts with real pipes, files, signals and processes."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading

import pytest

from pyengine.fs import door
from pyengine.fs.door import Door
from pyengine.fs.process import read_status
from pyengine.supervisor import journal as journal_module
from pyengine.supervisor.bounded import call_within
from pyengine.supervisor.command import Command
from pyengine.supervisor.inbox import SignalInbox
from pyengine.supervisor.journal import Journal, read_events
from pyengine.supervisor.relay import Relay
from pyengine.supervisor.watch import probe


def test_a_gone_run_is_unreachable_and_an_empty_one_is_not(tmp_path):
    assert probe([str(tmp_path)]).unreachable is None
    gone = probe([str(tmp_path / "gone")], "not all are known")
    assert "gone" in gone.unreachable
    assert gone.unknown == gone.unreachable
    assert probe([str(tmp_path)], "not all are known").unknown == "not all are known"


def test_what_does_not_answer_is_given_up_and_errors_come_through():
    never = threading.Event()
    with pytest.raises(TimeoutError):
        call_within(0.05, never.wait)
    never.set()
    with pytest.raises(ZeroDivisionError):
        call_within(5, lambda: 1 // 0)
    assert call_within(5, lambda: None) is None


def _events(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def test_events_wait_for_a_place_and_are_appended(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"event": "earlier"}\n')
    journal = Journal(None)
    journal.note("one", a=1)
    journal.start = 2
    journal.place(str(path))
    journal.note("two")
    found = _events(path)
    assert [event["event"] for event in found] == ["earlier", "one", "two"]
    assert (found[1]["a"], found[1]["start"], found[2]["start"]) == (1, 0, 2)
    assert found[1]["supervisor"] == os.getpid()


def test_a_log_that_cannot_be_written_is_told_once_and_kept_for_later(tmp_path, caplog):
    path = tmp_path / "later" / "log"
    journal = Journal(str(path))
    journal.note("one")
    journal.note("two")
    assert len([r for r in caplog.records if "cannot be written" in r.message]) == 1
    path.parent.mkdir()
    journal.note("three")
    assert [event["event"] for event in _events(path)] == ["one", "two", "three"]


def test_a_log_on_a_disk_that_does_not_answer_does_not_stop_anything(tmp_path, monkeypatch):
    free = threading.Event()
    written = threading.Event()

    class SlowDoor(Door):
        def write(self, fd, data):
            free.wait(30)
            super().write(fd, data)

        def close(self, fd):
            super().close(fd)
            if free.is_set():
                written.set()

    monkeypatch.setattr(door, "active", SlowDoor())
    monkeypatch.setattr(journal_module, "_WRITE_SECONDS", 0.05)
    path = tmp_path / "log"
    journal = Journal(str(path))
    journal.note("one")
    journal.note("two")
    free.set()
    assert written.wait(30)
    monkeypatch.undo()
    journal.note("three")
    assert [event["event"] for event in _events(path)] == ["one", "two", "three"]


def _cut_writes(monkeypatch, parts):
    """Have writes end in ENOSPC after so many bytes each; after the last all goes well."""
    left = list(parts)

    class FullDoor(Door):
        def write(self, fd, data):
            if left:
                super().write(fd, bytes(data)[: left.pop(0)])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(fd, data)

    monkeypatch.setattr(door, "active", FullDoor())


@pytest.mark.parametrize("kept", [0, 1, 40, -1, -2])
def test_a_torn_line_is_written_again_whole_on_a_line_of_its_own(tmp_path, monkeypatch, kept):
    path = str(tmp_path / "log")
    journal = Journal(path)
    journal.note("before")
    _cut_writes(monkeypatch, [kept])
    for event in ("torn", "second", "third"):
        journal.note(event)
    whole = [event["event"] for event in read_events(path)]
    assert whole == ["before", "torn", "second", "third"]
    with open(path) as file:
        lines = file.read().splitlines()
    assert len(lines) - len(whole) == (kept not in (0, -1)), (
        "one torn line, and nothing joined to it"
    )


def test_a_line_that_a_death_has_torn_swallows_nothing(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"event": "whole"}\n{"event": "to')
    Journal(str(path)).note("next")
    assert [event["event"] for event in read_events(str(path))] == ["whole", "next"]


def test_a_log_may_be_a_pipe(tmp_path):
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    journal = Journal(path)
    journal.note("one")
    assert json.loads(os.read(reader, 4096))["event"] == "one"
    os.close(reader)


def test_signals_come_as_values_in_order():
    with SignalInbox(signal.SIGUSR1, signal.SIGUSR2) as inbox:
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert inbox.take() == [signal.SIGUSR2, signal.SIGUSR1]
        assert inbox.take() == []
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_output_is_passed_on_and_a_held_pipe_does_not_keep_us():
    source, feed = os.pipe()
    result, target = os.pipe()
    relay = Relay(source, target)
    os.write(feed, b"half a li")
    assert os.read(result, 100) == b"half a li"
    relay.finish(10)
    assert relay.received_bytes == 9
    for fd in (feed, result, target):
        os.close(fd)


def test_output_that_nobody_reads_any_more_is_dropped():
    source, feed = os.pipe()
    result, target = os.pipe()
    os.close(result)
    relay = Relay(source, target)
    for _ in range(100):
        os.write(feed, bytes(65536))
    os.close(feed)
    relay.finish(10)
    assert relay.received_bytes == 100 * 65536
    os.close(target)


@pytest.fixture
def null():
    fd = os.open(os.devnull, os.O_WRONLY)
    yield (fd, fd)
    os.close(fd)


def _ended(command):
    os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
    return command.death


def test_a_commands_workers_end_with_it_however_stubborn(null, tmp_path):
    worker = "trap '' TERM; echo $$ > pid; kill -STOP $$; while :; do sleep 1; done"
    script = f'cd {tmp_path}; (sh -c "{worker}") & while [ ! -s pid ]; do :; done; exit 3'
    command = Command(["sh", "-c", script.replace("$$", "\\$\\$")], os.environ, null)
    death = _ended(command)
    assert (death.status, death.signal) == (3, None)
    pid = int((tmp_path / "pid").read_text())
    told = command.finish()
    assert pid in told
    status = read_status(pid)
    assert status is None or status.is_dead


def test_a_signal_is_known_as_one(null):
    command = Command(["sh", "-c", "kill -SEGV $$"], os.environ, null)
    assert _ended(command).signal == signal.SIGSEGV
    assert command.finish() == []
