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


@pytest.mark.parametrize(
    "plan", ["{", "{}x", '[{"op": "fsync"}]', '[{"op": "nothing", "action": "kill"}]', "[1]"]
)
def test_wrong_plan_is_refused(plan):
    with pytest.raises(ConfigError):
        faults.parse_plan(plan)
