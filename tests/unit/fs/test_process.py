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
