"""The supervised command: a child in a session and process group of its own.

Its pid stays taken, as a zombie, until the rest of its group is gone: a signal to the group can
never hit anybody else. The writer of a trainer has a session of its own, so no signal here reaches
it: it drains. As a subreaper, or as PID 1, the supervisor inherits such orphans and reaps them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from pyengine.fs import process
from pyengine.supervisor.faults import Death
from pyengine.supervisor.relay import Relay

_PR_SET_CHILD_SUBREAPER = 36
_LEAVE_SECONDS = 2.0
_RELAY_SECONDS = 5.0
_POLL_SECONDS = 0.02
_WRITER = b"pyengine.writer"


class Command:
    """A running command; owns its pipes and its pidfd until `finish`. OSError: it cannot start."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], targets: tuple[int, int]
    ) -> None:
        self._popen = subprocess.Popen(
            arguments,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self.pidfd = os.pidfd_open(self.pid)
        pipes = (self._popen.stdout, self._popen.stderr)
        self._relays = [
            Relay(os.dup(pipe.fileno()), target)
            for pipe, target in zip(pipes, targets, strict=True)
            if pipe is not None
        ]
        for pipe in pipes:
            if pipe is not None:
                pipe.close()

    @property
    def received_bytes(self) -> int:
        """How much output has come so far."""
        return sum(relay.received_bytes for relay in self._relays)

    @property
    def is_blocked(self) -> bool:
        """Whether output waits for whoever reads ours."""
        return any(relay.is_blocked for relay in self._relays)

    @property
    def death(self) -> Death | None:
        """How it ended; None while it runs. Its pid stays taken."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return Death(found.si_status, None)
        return Death(None, found.si_status)

    def signal_group(self, number: int) -> None:
        """Send a signal to every process of the group; stopped ones are woken to receive it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
            os.killpg(self.pid, signal.SIGCONT)

    def finish(self) -> list[int]:
        """Clear the group of a command that has ended, pass its last output on, and reap it.

        Its workers get 2 s to notice, 2 s after SIGTERM, then SIGKILL. Returns the pids of those
        that had to be told.
        """
        told: list[int] = []
        for number in (signal.SIGTERM, signal.SIGKILL):
            left = self._await_group()
            if not left:
                break
            told += [pid for pid in left if pid not in told]
            self.signal_group(number)
        else:
            self._await_group()
        for relay in self._relays:
            relay.finish(_RELAY_SECONDS)
        os.close(self.pidfd)
        self._popen.wait()
        return told

    def _await_group(self) -> list[int]:
        """Wait until the group's other processes have ended, 2 s at most; return those that have
        not. Orphans among them are reaped here."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        while True:
            left = [pid for pid in process.all_pids() if self._is_member(pid)]
            if not left or time.monotonic() >= deadline:
                return left
            reap_orphans(self.pid)
            _await_any(left, min(_POLL_SECONDS * 10, max(0.0, deadline - time.monotonic())))

    def _is_member(self, pid: int) -> bool:
        status = process.read_status(pid)
        if status is None or status.is_dead:
            return False
        return status.group == self.pid and pid != self.pid


def _await_any(pids: list[int], seconds: float) -> None:
    """Wait for the end of one of them."""
    poller = select.poll()
    pidfds = []
    for pid in pids:
        with contextlib.suppress(OSError):
            pidfds.append(os.pidfd_open(pid))
            poller.register(pidfds[-1], select.POLLIN)
    poller.poll(int(seconds * 1000))
    for pidfd in pidfds:
        os.close(pidfd)


def become_subreaper() -> bool:
    """Have orphaned descendants become children of this process; whether the kernel agreed."""
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def reap_orphans(command_pid: int) -> None:
    """Reap children that have ended, except the command, whose status is still wanted."""
    for pid in _children():
        if pid != command_pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def draining_writers() -> list[int]:
    """Return the writers of dead trainers, which are our children by now."""
    found = []
    for pid in _children():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            if _WRITER in file.read():
                found.append(pid)
    return found


def _children() -> list[int]:
    """Return the pids of our children, adopted ones included."""
    ours = os.getpid()
    found = []
    for pid in process.all_pids():
        status = process.read_status(pid)
        if status is not None and status.parent == ours:
            found.append(pid)
    return found
