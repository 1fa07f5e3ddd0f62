"""Memory for a staging slot, made and touched off the hot path.

First touch of shared memory runs at a tenth of the speed of a copy, so that a snapshot into a new
slot would stall ten times as long as later ones. One spare arena at a time is made in a thread, of
the size that a rehearsal found, where there is room for it beside what the rings have still to
take. It is no promise: who needs a slot and finds none, or one that is too small, makes it himself.
"""

from __future__ import annotations

import threading

from pyengine.config import MEMORY_MARGIN_BYTES
from pyengine.errors import PyengineError
from pyengine.events import logger
from pyengine.replay.demand import promised_bytes
from pyengine.shm.arena import Arena
from pyengine.shm.headroom import headroom

_PIECE_BYTES = 16 * 1024 * 1024
"""What is made between two looks at whether it is still wanted."""


class SpareArena:
    """At most one arena that no slot has yet; owns it until `take`. One thread at a time."""

    def __init__(self) -> None:
        self._making: _Making | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the spare arena, or of the one being made; 0 where there is none."""
        return self._making.size_bytes if self._making is not None else 0

    def want(self, size_bytes: int) -> None:
        """Begin to make an arena of this size, unless there is one that is as large."""
        if self.size_bytes >= size_bytes:
            return
        self.close()
        making = _Making(size_bytes)
        try:
            threading.Thread(target=making.run, name="pyengine-spare", daemon=True).start()
        except RuntimeError:
            return  # no thread can be started: the snapshot makes its slot itself
        self._making = making

    def take(self, size_bytes: int) -> Arena | None:
        """Return the spare arena if it is large enough, else None.

        One that is being made is waited for: another would not be there sooner.
        """
        making = self._making
        if making is None or making.size_bytes < size_bytes:
            return None
        making.done.wait()
        self._making = None
        return making.give()

    def close(self) -> None:
        """Let go of the arena, made or not. Idempotent."""
        making, self._making = self._making, None
        if making is not None:
            making.give_up()


class _Making:
    """One arena in the making; whoever comes last of thread and owner lets go of it."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.done = threading.Event()
        self._is_unwanted = False
        self._arena: Arena | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            self._make()
        except (PyengineError, OSError) as error:
            logger.debug("no staging slot ahead of its use: %s", error)
        finally:
            self.done.set()

    def _make(self) -> None:
        needed = self.size_bytes + promised_bytes() + MEMORY_MARGIN_BYTES
        if headroom() < needed:
            return
        arena = Arena.create(self.size_bytes, "staging-spare")
        whole = False
        try:
            for offset in range(0, self.size_bytes, _PIECE_BYTES):
                if self._is_unwanted:
                    return
                length = min(_PIECE_BYTES, self.size_bytes - offset)
                arena.reserve(offset, length)
                arena.mapping.populate(offset, length, True)
            with self._lock:
                whole = not self._is_unwanted
                self._arena = arena if whole else None
        finally:
            if not whole:
                arena.close()

    def give(self) -> Arena | None:
        with self._lock:
            arena, self._arena = self._arena, None
        return arena

    def give_up(self) -> None:
        with self._lock:
            self._is_unwanted = True
            arena, self._arena = self._arena, None
        if arena is not None:
            arena.close()
