"""Waiting for the commit lock beside everything else that a writer does.

Whoever holds it may hang: segments go on meanwhile, the trainer is heard, and may cancel. After
some seconds it is told who holds the lock, and in the end the snapshot fails.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Protocol

from pyengine.catalog.commit_lock import try_lock
from pyengine.catalog.keepers import lock_busy
from pyengine.config import COMMIT_LOCK_SECONDS
from pyengine.errors import SnapshotFailedError
from pyengine.fs.locks import OfdLock

POLL_SECONDS = 0.05
"""How long after a step the next one is due."""

_PATIENCE_SECONDS = 3.0
_TOLD = "commit lock"


class Voice(Protocol):
    """The session, as far as it is needed here."""

    run_dir: str

    def warn(self, text: str, *, once: str | None = None) -> None:
        """Tell the trainer."""

    def no_longer(self, once: str) -> None:
        """Let it be told again."""


def lock_steps(session: Voice) -> Generator[None, None, OfdLock]:
    """Take the commit lock; each yield waits for `POLL_SECONDS` or an event.

    Raises SnapshotFailedError, which names the holder, after `COMMIT_LOCK_SECONDS`;
    RunDirectoryError where the lock's file is gone, OSError.
    """
    begun = time.monotonic()
    is_told = False
    while True:
        lock = try_lock(session.run_dir)
        if lock is not None:
            session.no_longer(_TOLD)
            return lock
        waited = time.monotonic() - begun
        if waited >= COMMIT_LOCK_SECONDS:
            raise SnapshotFailedError(f"after {waited:.0f} s: {lock_busy(session.run_dir)}")
        if waited >= _PATIENCE_SECONDS and not is_told:
            is_told = True
            text = f"a snapshot waits for the commit lock: {lock_busy(session.run_dir)}"
            session.warn(text, once=_TOLD)
        yield
