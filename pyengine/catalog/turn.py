"""Waiting until a run can be claimed, and taking it from an owner that still lives.

A living owner keeps the run, unless it is taken over: then only the commit lock is waited for, and
the higher generation turns away whatever that owner and its writer still try. A dead owner's writer
may drain: it is waited for. Whoever keeps the run, or the commit lock, beyond the wait is ended
where it is proven to be frozen, so that it cannot wake up inside the lock.
"""

from __future__ import annotations

import os
import threading
import time

from pyengine.catalog import scan
from pyengine.catalog.generation import generation_path, read_party
from pyengine.errors import RunBusyError
from pyengine.events import logger
from pyengine.format import names
from pyengine.fs import process
from pyengine.fs.locks import OfdLock, is_locked
from pyengine.fs.process import ProcessIdentity

_POLL_SECONDS = 0.02
_AFTER_KILL_SECONDS = 10.0


class Turn:
    """One attempt to get a run: waits up to `wait_seconds`, or until `stop` is set."""

    def __init__(
        self, run_dir: str, wait_seconds: float, stop: threading.Event, *, takeover: bool
    ) -> None:
        self._run_dir = run_dir
        self._wait_seconds = wait_seconds
        self._stop = stop
        self._takeover = takeover
        self._deadline = time.monotonic() + wait_seconds
        self._progress = _Progress()
        self._has_killed = False

    def take(self) -> OfdLock:
        """Return the commit lock once nobody keeps the run; RunBusyError names who does."""
        while True:
            newest = scan.claimed_generation(self._run_dir)
            is_owned = self._is_locked(newest, names.OWNER_BYTE)
            if is_owned and not self._takeover:
                raise self._busy(newest, "owner", "is in use by")
            lock = OfdLock.try_acquire(os.path.join(self._run_dir, names.LOCK))
            if lock is not None:
                if self._is_free(newest):
                    return lock
                lock.release()
            idle_seconds = self._progress.look(self._identity(newest, "writer"))
            if time.monotonic() >= self._deadline:
                self._end_frozen(newest, idle_seconds)
            if self._stop.wait(_POLL_SECONDS):
                raise self._busy(newest, *self._keeper(newest))

    def _is_free(self, generation: int) -> bool:
        """Whether the run may be claimed by whoever holds the commit lock now."""
        if scan.claimed_generation(self._run_dir) != generation:
            return False
        is_owned = self._is_locked(generation, names.OWNER_BYTE)
        if not is_owned and not self._is_locked(generation, names.WRITER_BYTE):
            return True
        # A writer that drains for a dead owner has rows and snapshots to bring to disk: it is given
        # its time even so.
        if not self._takeover or not (is_owned or time.monotonic() >= self._deadline):
            return False
        told = self._told(generation, "owner" if is_owned else "writer", "taken over from")
        logger.warning("%s; it can commit nothing any more", told)
        return True

    def _end_frozen(self, generation: int, idle_seconds: float) -> None:
        """Kill who keeps the run where it is stopped, or did nothing for half of the wait; the wait
        goes on a little then. RunBusyError where nobody can be ended."""
        roles = ["writer"]
        if self._takeover and self._is_locked(generation, names.OWNER_BYTE):
            roles.append("owner")  # it has not let go of the commit lock
        for role in roles if not self._has_killed else []:
            idle = idle_seconds if role == "writer" else 0.0
            if self._end_if_frozen(generation, role, idle):
                self._has_killed = True
                self._deadline = time.monotonic() + _AFTER_KILL_SECONDS
                return
        raise self._busy(generation, *self._keeper(generation))

    def _end_if_frozen(self, generation: int, role: str, idle_seconds: float) -> bool:
        byte = names.WRITER_BYTE if role == "writer" else names.OWNER_BYTE
        identity = self._identity(generation, role)
        if not self._is_locked(generation, byte) or identity is None or not identity.is_alive():
            return False
        status = process.read_status(identity.pid)
        is_stopped = status is not None and status.is_stopped
        if not is_stopped and idle_seconds < self._wait_seconds / 2:
            return False
        logger.warning("%s; it is frozen, and was ended", self._told(generation, role, "kept by"))
        return identity.kill(wait_seconds=_AFTER_KILL_SECONDS)

    def _is_locked(self, generation: int, byte: int) -> bool:
        return is_locked(generation_path(self._run_dir, generation), byte)

    def _identity(self, generation: int, role: str) -> ProcessIdentity | None:
        return read_party(self._run_dir, generation, role).identity

    def _keeper(self, generation: int) -> tuple[str, str]:
        if self._is_locked(generation, names.OWNER_BYTE):
            return "owner", "cannot be taken over: its commit lock is held by"
        return "writer", "is still being drained by the writer"

    def _told(self, generation: int, role: str, what: str) -> str:
        party = read_party(self._run_dir, generation, role)
        pid = party.identity.pid if party.identity else 0
        host = party.identity.host if party.identity else "an unknown host"
        return (
            f"{self._run_dir} {what} pid {pid} on {host}, since {party.since} "
            f"(generation {generation})"
        )

    def _busy(self, generation: int, role: str, what: str) -> RunBusyError:
        party = read_party(self._run_dir, generation, role)
        return RunBusyError(
            self._told(generation, role, what),
            path=self._run_dir,
            pid=party.identity.pid if party.identity else 0,
            host=party.identity.host if party.identity else "an unknown host",
            since=party.since,
        )


class _Progress:
    """Whether a process gets anything done: its processor time and written bytes, over time."""

    def __init__(self) -> None:
        self._last: tuple[int, int, int] | None = None
        self._since = time.monotonic()

    def look(self, identity: ProcessIdentity | None) -> float:
        """Look at the process; return for how many seconds it has got nothing done."""
        seen = None
        if identity is not None and identity.is_alive():
            status = process.read_status(identity.pid)
            written = process.written_bytes(identity.pid)
            seen = (identity.pid, status.cpu_ticks if status else 0, written)
        if seen != self._last:
            self._last = seen
            self._since = time.monotonic()
        return time.monotonic() - self._since
