"""Process identity: the process that was meant, or none."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys

import pytest

from pyengine.fs import process
from pyengine.fs.mounts import filesystem_type, is_remote

_IDENTIFY = """
import json
from pyengine.fs import process
print(json.dumps(process.current().to_dict()), flush=True)
input()
"""


@pytest.fixture
def other():
    import json

    child = subprocess.Popen(
        [sys.executable, "-c", _IDENTIFY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    identity = process.ProcessIdentity.from_dict(json.loads(child.stdout.readline()))
    yield child, identity
    child.kill()
    child.wait()


def test_living_process_is_recognised_and_killed(other):
    child, identity = other
    assert identity.is_alive()
    child.send_signal(signal.SIGSTOP)
    assert identity.kill(wait_seconds=30)
    assert child.wait() == -signal.SIGKILL
    assert not identity.is_alive()


@pytest.mark.parametrize(
    "change", [{"start_ticks": 1}, {"boot_id": "other"}, {"host": "other"}, {"pid_namespace": 1}]
)
def test_pid_of_another_process_is_never_killed(other, change):
    child, identity = other
    stranger = dataclasses.replace(identity, **change)
    assert not stranger.is_alive()
    assert not stranger.kill(wait_seconds=0)
    assert child.poll() is None


def test_process_never_kills_itself():
    assert not process.current().kill(wait_seconds=0)


@pytest.mark.parametrize("record", [{}, {"pid": True}, {"host": 1}])
def test_incomplete_record_is_refused(record):
    with pytest.raises(ValueError, match="is"):
        process.ProcessIdentity.from_dict(record)


def test_state_of_this_process():
    status = process.read_status(os.getpid())
    assert status is not None
    assert not status.is_stopped
    assert not status.is_dead
    assert process.read_status(2**22 + 1) is None


def test_file_system_of_proc_is_named():
    assert filesystem_type("/proc/self") == "proc"
    assert not is_remote("/proc/self")


def test_a_process_that_sleeps_is_not_frozen_and_one_that_is_stopped_is(other):
    child, identity = other
    assert not identity.is_frozen()
    assert process.describe(child.pid).startswith("in state ")
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert identity.is_frozen()
    assert "stopped by a signal" in process.describe(child.pid)
    assert not dataclasses.replace(identity, start_ticks=1).is_frozen()


@pytest.mark.parametrize("mount", ["", "unified"])
@pytest.mark.parametrize("frozen", [0, 1])
def test_the_freezer_of_a_cgroup_is_seen(tmp_path, mount, frozen):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text("3:freezer:/other\n0::/job/step\n")
    group = tmp_path / mount / "job" / "step"
    group.mkdir(parents=True)
    (group / "cgroup.events").write_text(f"populated 1\nfrozen {frozen}\n")
    is_frozen = process._is_in_frozen_cgroup(7, proc=str(tmp_path), mount=str(tmp_path))
    assert is_frozen == bool(frozen)
