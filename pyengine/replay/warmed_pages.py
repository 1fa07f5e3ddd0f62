"""After a restore: pages that the writer has warmed are mapped ahead of the sampler.

The writer brings segment files into the page cache; here, each 64 KiB of them is still a page fault
when it is first sampled: batches of 14 MB took twice the processor time for another 200 batches
(2026-11-30). A thread follows the warming, segment by segment, and ends with it.
"""

from __future__ import annotations

import threading
import time
import weakref

from pyengine.errors import ClosedError, ForkedProcessError
from pyengine.replay.storage import Storage

_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 30.0
"""Without a newly warmed segment for so long, there is no warming: nobody ticks, or memory is
short."""


def follow_warming(storage: Storage) -> None:
    """Start the thread where `storage` has mapped segments. It does not keep the storage alive."""
    if storage.mapped:
        threading.Thread(
            target=_follow,
            args=(weakref.ref(storage), storage.closing),
            name="pyengine-warmed",
            daemon=True,
        ).start()


def _follow(followed: weakref.ref[Storage], closing: threading.Event) -> None:
    left: list[tuple[int, int]] | None = None
    since = time.monotonic()
    while not closing.wait(_POLL_SECONDS):
        storage = followed()
        if storage is None or time.monotonic() - since > _PATIENCE_SECONDS:
            return
        if left is None:  # as they are warmed: newest first
            left = sorted(storage.mapped, key=lambda place: place[1], reverse=True)
        try:
            behind = [place for place in left if not _map_warmed(storage, *place)]
        except (ClosedError, ForkedProcessError):
            return
        if len(behind) < len(left):
            left, since = behind, time.monotonic()
        if not left:
            return
        del storage


def _map_warmed(storage: Storage, lane: int, segment: int) -> bool:
    """Map a segment's pages if all of it is verified, or it is gone; whether that is so."""
    if (lane, segment) not in storage.mapped:
        return True
    if not storage.control.is_verified(lane, segment, 0, storage.plan.layout.block_count):
        return False
    storage.core.map_pages(lane, segment)
    return True
