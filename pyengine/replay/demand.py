"""What the tracked rings of this process have still to take of shared memory, and what is left.

All of them together: each takes its memory as its rows come, so that what is free now is promised
to several. Registered are the rings that an engine tracks, by weak references.
"""

from __future__ import annotations

import weakref
from typing import Protocol

from pyengine.errors import SharedMemoryError
from pyengine.events import logger
from pyengine.shm.headroom import headroom


class Demanding(Protocol):
    """A ring, as far as its memory goes."""

    capacity: int

    @property
    def whole_bytes(self) -> int:
        """The bytes of memory of the whole ring, or of as much of it as its limit allows."""

    @property
    def rows_in_memory(self) -> int:
        """The rows that lie in them."""

    def untaken_bytes(self) -> int:
        """Return the bytes of those that it has not taken yet; 0 once it is no longer."""


_tracked: dict[int, weakref.ref[Demanding]] = {}


def add_demand(ring: Demanding) -> None:
    """Count a ring's memory as promised, until `drop_demand` or its end."""
    key = id(ring)
    _tracked[key] = weakref.ref(ring, lambda _: _tracked.pop(key, None))


def drop_demand(ring: Demanding) -> None:
    """Count it no longer."""
    _tracked.pop(id(ring), None)


def promised_bytes() -> int:
    """Return the bytes that all tracked rings have still to take."""
    rings = [ring() for ring in list(_tracked.values())]
    return sum(ring.untaken_bytes() for ring in rings if ring is not None)


def check_demand(ring: Demanding, label: str, *, strict: bool, has_files: bool = False) -> None:
    """Warn, or with `strict` raise SharedMemoryError, where the rings and `ring` will not fit.

    Names the row of `ring` at which memory will end, all of them filling up alike; `has_files`:
    its oldest rows live in files from there on.
    """
    own = ring.untaken_bytes()
    others = [other() for other in list(_tracked.values())]
    needed = own + sum(o.untaken_bytes() for o in others if o is not None and o is not ring)
    free = headroom()
    if own == 0 or needed <= free:
        return
    filled = ring.whole_bytes - own + own * free // needed
    row = ring.rows_in_memory * filled // ring.whole_bytes
    message = (
        f"{label}: the rings have {needed >> 20} MiB of shared memory still to take, "
        f"{free >> 20} MiB are free: memory will end at about row {row} of {ring.capacity}"
    )
    if has_files:
        message += "; from there on the oldest rows are read from their files, as the disk allows"
    if strict:
        raise SharedMemoryError(message, needed_bytes=needed, free_bytes=free)
    logger.warning("%s", message)
