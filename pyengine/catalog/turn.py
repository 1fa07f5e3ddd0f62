"""Waiting until a run can be claimed, and taking it from an owner that still lives.

A living owner keeps the run, unless it is taken over: then only the commit lock is waited for, and
the higher generation turns away whatever that owner and its writer still try. A dead owner's writer
may drain: it is waited for. Whoever keeps the run, or the commit lock, beyond the wait is ended
where it is one of the run's processes and frozen (stopped by a signal, or by its cgroup), so that
it cannot wake up inside the lock. One that a slow disk keeps waiting looks idle and is not: nobody
else is ended.
"""

from __future__ import annotations

import os
import threading
import time

from pyengine.catalog import scan
from pyengine.catalog.generation import generation_path
from pyengine.catalog.keepers import Keeper, busy, lock_busy, lock_keepers, party_keeper
from pyengine.errors import RunBusyError
from pyengine.events import logger
from pyengine.format import names
from pyengine.fs.locks import OfdLock, is_locked

_POLL_SECONDS = 0.02
_AFTER_KILL_SECONDS = 10.0


class Turn:
    """One attempt to get a run: waits up to `wait_seconds`, or until `stop` is set."""

    def __init__(
        self, run_dir: str, wait_seconds: float, stop: threading.Event, *, takeover: bool
    ) -> None:
        self._run_dir = run_dir
        self._stop = stop
        self._takeover = takeover
        self._deadline = time.monotonic() + wait_seconds
        self._has_killed = False

    def take(self) -> OfdLock:
        """Return the commit lock once nobody keeps the run; RunBusyError names who does."""
        while True:
            newest = scan.claimed_generation(self._run_dir)
            is_owned = self._is_locked(newest, names.OWNER_BYTE)
            if is_owned and not self._takeover:
                raise self._busy(newest)
            lock = OfdLock.try_acquire(os.path.join(self._run_dir, names.LOCK))
            if lock is not None:
                if self._is_free(newest):
                    return lock
                lock.release()
            if time.monotonic() >= self._deadline:
                self._give_up_or_end(newest, is_locked_out=lock is None)
            if self._stop.wait(_POLL_SECONDS):
                raise self._busy(newest)

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
        keeper = self._keeper(generation)
        told = "%s taken over from %s; it can commit nothing any more"
        logger.warning(told, self._run_dir, keeper)
        return True

    def _give_up_or_end(self, newest: int, *, is_locked_out: bool) -> None:
        """The wait is over: end who keeps the run where it is frozen, and wait a little more; else
        RunBusyError, which says who keeps it."""
        keepers = lock_keepers(self._run_dir) if is_locked_out else [self._keeper(newest)]
        frozen = [] if self._has_killed else [keeper for keeper in keepers if keeper.is_frozen]
        for keeper in frozen:
            logger.warning("%s was kept by %s; it is frozen, and was ended", self._run_dir, keeper)
            assert keeper.identity is not None
            if keeper.identity.kill(wait_seconds=_AFTER_KILL_SECONDS):
                self._has_killed = True
                self._deadline = time.monotonic() + _AFTER_KILL_SECONDS
                return
        if is_locked_out:
            raise lock_busy(self._run_dir, keepers)
        raise self._busy(newest)

    def _is_locked(self, generation: int, byte: int) -> bool:
        return is_locked(generation_path(self._run_dir, generation), byte)

    def _keeper(self, generation: int) -> Keeper:
        is_owned = self._is_locked(generation, names.OWNER_BYTE)
        return party_keeper(self._run_dir, generation, "owner" if is_owned else "writer")

    def _busy(self, generation: int) -> RunBusyError:
        keeper = self._keeper(generation)
        if keeper.role == "owner":
            return busy(self._run_dir, "is in use by", keeper, _OWNED_ADVICE)
        return busy(self._run_dir, "is still being drained by the writer", keeper, _DRAINED_ADVICE)


_OWNED_ADVICE = "wait for its end, or take the run over with takeover=True where it hangs"
_DRAINED_ADVICE = (
    "it brings the rows of a dead trainer to disk: wait longer (drain_wait=, in seconds), or "
    "kill it and lose those that are not there yet"
)
