"""Fault plans: armed by the environment of a real process, exact about which call they hit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from pyengine.errors import ConfigError
from pyengine.fs import door, faults
from pyengine.fs.faults import FaultDoor, Rule

_WRITE_THREE = """
import sys
from pyengine.fs import durable
for name in "abc":
    durable.write_file(sys.argv[1], name, [b"data"])
"""


def _run(directory, *rules):
    environment = dict(os.environ, PYENGINE_FAULT_PLAN=json.dumps(rules))
    command = [sys.executable, "-c", _WRITE_THREE, str(directory)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_process_without_a_plan_has_the_plain_door():
    assert type(door.active) is door.Door


def test_plan_kills_before_the_call_takes_effect(tmp_path):
    done = _run(tmp_path, {"op": "pwrite", "nth": 2, "action": "kill"})
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "a").read_bytes() == b"data"
    assert (tmp_path / "b").read_bytes() == b""
    assert not (tmp_path / "c").exists()


def test_plan_kills_after_the_call_took_effect(tmp_path):
    done = _run(tmp_path, {"op": "pwrite", "path": "*/b", "when": "after", "action": "kill"})
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "b").read_bytes() == b"data"


def test_plan_can_kill_another_process_first(tmp_path):
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    rule = {"op": "fsync", "action": "delay", "seconds": 0, "signal_pid": sleeper.pid}
    assert _run(tmp_path, rule).returncode == 0
    assert sleeper.wait() == -signal.SIGKILL


def test_plan_for_another_process_is_not_armed(tmp_path):
    done = _run(tmp_path, {"op": "*", "process": "*no such command*", "action": "kill"})
    assert done.returncode == 0


def test_plan_records_calls_in_order(tmp_path):
    log = tmp_path / "log"
    (tmp_path / "out").mkdir()
    _run(tmp_path / "out", {"op": "*", "path": "*/out/b", "action": "record", "file": str(log)})
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert [call["op"] for call in calls] == ["create", "pwrite", "fsync", "close"]


def test_error_is_raised_for_as_many_calls_as_told(tmp_path):
    faulty = FaultDoor([Rule(op="mkdir", action="error", errno="EIO", nth=2, times=2)])
    results = []
    for name in "abcd":
        try:
            faulty.mkdir(str(tmp_path / name))
            results.append("made")
        except OSError as error:
            results.append(error.errno)
    assert results == ["made", 5, 5, "made"]


def test_changes_are_the_calls_that_alter_the_disk_and_no_others(tmp_path):
    log = tmp_path / "log"
    (tmp_path / "out").mkdir()
    _run(tmp_path / "out", {"op": "changes", "action": "record", "file": str(log)})
    calls = [json.loads(line)["op"] for line in log.read_text().splitlines()]
    assert calls == ["create", "pwrite", "fsync"] * 3


def test_every_operation_that_can_change_the_disk_is_a_change():
    only_look = {"open", "read", "pread_into", "close"}
    operations = {name for name in vars(door.Door) if not name.startswith("_")}
    assert operations - only_look == faults.CHANGES - {"create"}


@pytest.mark.parametrize("length", [1, 2, 100, 4096, 3 * 4096 + 5])
@pytest.mark.parametrize("op", ["write", "pwrite"])
def test_a_short_write_goes_on_with_the_rest(tmp_path, monkeypatch, op, length):
    data = os.urandom(length)
    sizes = []
    plain = {name: getattr(os, name) for name in ("write", "pwrite")}

    def counting(fd, view, *offset):
        sizes.append(len(view))
        return plain[op](fd, view, *offset)

    monkeypatch.setattr(os, op, counting)
    faulty = FaultDoor([Rule(op=op, action="short")])
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    getattr(faulty, op)(fd, data, *((0,) if op == "pwrite" else ()))
    assert (tmp_path / "file").read_bytes() == data
    assert sum(sizes) == length
    assert len(sizes) == (2 if length > 1 else 1)
    os.close(fd)


@pytest.mark.parametrize("op", ["write", "pwrite"])
def test_a_write_goes_on_where_the_kernel_took_a_part(tmp_path, monkeypatch, op):
    data = os.urandom(1000)
    plain = {name: getattr(os, name) for name in ("write", "pwrite")}
    monkeypatch.setattr(os, op, lambda fd, view, *offset: plain[op](fd, view[:300], *offset))
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    getattr(door.Door(), op)(fd, data, *((0,) if op == "pwrite" else ()))
    assert (tmp_path / "file").read_bytes() == data
    os.close(fd)


def test_plan_kills_the_children(tmp_path):
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "from pyengine.fs import door\n"
        "door.active.mkdir(sys.argv[1])\n"
        "print(child.wait())"
    )
    rule = {"op": "mkdir", "action": "delay", "signal_pid": "children"}
    environment = dict(os.environ, PYENGINE_FAULT_PLAN=json.dumps([rule]))
    command = [sys.executable, "-c", code, str(tmp_path / "made")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == -signal.SIGKILL
    assert (tmp_path / "made").is_dir()


@pytest.mark.parametrize(
    "plan", ["{", "{}x", '[{"op": "fsync"}]', '[{"op": "nothing", "action": "kill"}]', "[1]"]
)
def test_wrong_plan_is_refused(plan):
    with pytest.raises(ConfigError):
        faults.parse_plan(plan)
