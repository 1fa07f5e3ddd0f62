"""Slots that are ready before the head needs them, off the hot path.

Free slots get memory ahead: page faults cost more than the copies into them. Where memory ends, or
the ring's limit of it, the oldest segments are spilled to their files instead. Both here, in one
thread a ring; an append that is faster does it by itself.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

from pyengine._native.ring import NoMemory
from pyengine.errors import ClosedError, SharedMemoryError
from pyengine.replay.allowance import allow_memory

if TYPE_CHECKING:
    from pyengine.replay.storage import Storage

_AHEAD_BYTES = 32 * 1024 * 1024
_POLL_SECONDS = 0.02
_RETRY_SECONDS = 1.0
"""So long nobody asks again for memory that was refused."""


def slots_ahead(slot_bytes: int) -> int:
    """Return how many slots are to be ready."""
    return max(1, _AHEAD_BYTES // slot_bytes)


def keep_slots_ready(storage: weakref.ref[Storage], closing: threading.Event) -> None:
    """Look after a storage's slots until it is closed or gone, or has all that it can need."""
    ask_at = 0.0
    while not closing.wait(_POLL_SECONDS):
        live = storage()
        if live is None:
            return
        try:
            is_given: bool | None = False
            is_refused = time.monotonic() < ask_at
            if not is_refused:
                try:
                    is_given = give_memory(live, slots_ahead(live.plan.layout.file_bytes))
                # Others may let go of some; an append that needs it now says so itself.
                except (NoMemory, SharedMemoryError):
                    is_refused, ask_at = True, time.monotonic() + _RETRY_SECONDS
            if is_given is None and live.plan.memory_limit is None:
                return
            if is_given is None or is_refused:
                missing = live.spiller.missing(slots_ahead(live.plan.layout.file_bytes))
                if missing > 0:
                    live.spiller.spill(missing)
        except ClosedError:
            return
        del live


def give_memory(storage: Storage, ahead: int) -> bool | None:
    """Give slots memory until `ahead` are ready: False. None: all have it, or the ring is closed.

    NoMemory, SharedMemoryError where there is none.
    """
    core, plan = storage.core, storage.plan
    given: bool | None = True
    while given and not storage.closing.is_set():
        given = core.reserve_ahead(ahead)
        if given is False and core.asks_for_memory:
            slot_bytes = plan.layout.file_bytes
            allow_memory(core, slot_bytes, "reserving ahead", lanes=plan.num_lanes)
            given = True
    return given
