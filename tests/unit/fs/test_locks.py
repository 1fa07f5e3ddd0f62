"""Locks: what ends them, and what must not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from pyengine.fs.locks import OfdLock, holders, is_locked

_HOLD = """
import sys
from pyengine.fs.locks import OfdLock
lock = OfdLock.try_acquire(sys.argv[1], int(sys.argv[2]))
print("held" if lock else "busy", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "lock"
    file.write_bytes(b"")
    return str(file)


def _holder(path, byte=0):
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, path, str(byte)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_second_taker_gets_nothing_until_release(path):
    first = OfdLock.try_acquire(path)
    assert OfdLock.try_acquire(path) is None
    assert is_locked(path)
    first.release()
    first.release()
    assert not is_locked(path)
    with OfdLock.try_acquire(path) as again:
        assert again.is_held


def test_bytes_are_independent(path):
    with OfdLock.try_acquire(path, 0), OfdLock.try_acquire(path, 1):
        assert is_locked(path, 0)
        assert is_locked(path, 1)
        assert not is_locked(path, 2)


def test_lock_survives_other_opens_and_closes_in_the_process(path, tmp_path):
    with OfdLock.try_acquire(path):
        with open(path, "rb+") as file:
            file.read()
        shutil.copy(path, tmp_path / "copy")
        assert is_locked(path)
        assert OfdLock.try_acquire(path) is None
        assert not is_locked(str(tmp_path / "copy"))


def test_sigkill_frees_the_lock(path):
    process = _holder(path, 1)
    assert is_locked(path, 1)
    assert OfdLock.try_acquire(path, 1) is None
    process.kill()
    process.wait()
    assert not is_locked(path, 1)


def test_forked_child_does_not_keep_the_lock(path):
    lock = OfdLock.try_acquire(path)
    reader, writer = os.pipe()
    ready_reader, ready_writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.write(ready_writer, b"x")
        os.read(reader, 1)
        os._exit(0 if not lock.is_held else 1)
    os.close(reader)
    os.read(ready_reader, 1)
    # Closed without unlocking, as a SIGKILL would do it.
    os.close(lock._fd)
    lock._fd = -1
    assert not is_locked(path)
    os.close(writer)
    os.close(ready_reader)
    os.close(ready_writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_release_in_a_forked_child_leaves_the_parent_locked(path):
    lock = OfdLock.try_acquire(path)
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert is_locked(path)
    lock.release()


def test_shared_locks_exclude_the_exclusive_one(path):
    with OfdLock.try_acquire(path, shared=True), OfdLock.try_acquire(path, shared=True):
        assert OfdLock.try_acquire(path) is None
        assert is_locked(path)
    assert OfdLock.try_acquire(path) is not None


def test_shared_lock_needs_no_write_permission(path):
    os.chmod(path, 0o444)
    with OfdLock.try_acquire(path, shared=True) as lock:
        assert lock.is_held


def test_acquire_times_out_and_then_succeeds(path):
    process = _holder(path)
    with pytest.raises(TimeoutError):
        OfdLock.acquire(path, timeout=0.05)
    process.send_signal(signal.SIGKILL)
    with OfdLock.acquire(path, timeout=30) as lock:
        assert lock.is_held
    process.wait()


def test_missing_file_is_an_error_to_lock_and_free_to_ask(tmp_path):
    with pytest.raises(FileNotFoundError):
        OfdLock.try_acquire(str(tmp_path / "none"))
    assert not is_locked(str(tmp_path / "none"))


def test_descriptor_is_not_inherited_by_exec(path):
    with OfdLock.try_acquire(path) as lock:
        assert not os.get_inheritable(lock._fd)


def test_lock_that_is_handed_over_lives_on_with_a_duplicate(path):
    lock = OfdLock.try_acquire(path)
    duplicate = os.dup(lock.fd)
    lock.hand_over()
    assert not lock.is_held
    assert is_locked(path)
    adopted = OfdLock.adopt(duplicate, path, 0)
    assert adopted.is_held
    adopted.release()
    assert not is_locked(path)


def test_descriptor_without_the_lock_is_not_adopted_while_somebody_holds_it(path):
    with OfdLock.try_acquire(path):
        fd = os.open(path, os.O_RDWR)
        assert OfdLock.adopt(fd, path, 0) is None
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_the_holder_of_a_byte_is_found_and_nobody_else(tmp_path):
    path = str(tmp_path / "lock")
    open(path, "w").close()
    assert holders(path) == []
    with OfdLock.acquire(path, 1):
        assert holders(path, 1) == [os.getpid()]
        assert holders(path, 0) == []
    assert holders(path, 1) == []
    assert holders(str(tmp_path / "none")) == []
