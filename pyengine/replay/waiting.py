"""Waiting for a free segment slot: the disk, or the writer, is slower than the inserts.

In slices, with no lock held, so that signals are seen and the writer is looked after. At the bound
the pending snapshots that hold slots are cancelled, loudly. One that is being committed can no
longer be cancelled, and ends soon by itself: it is waited for, COMMIT_WAIT_SECONDS at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyengine.config import COMMIT_WAIT_SECONDS
from pyengine.errors import PyengineError, SharedMemoryError
from pyengine.replay.owner import SlotOwner

_SLICE_SECONDS = 0.001


def wait_for_slot(
    go_on: Callable[[], bool],
    owner_now: Callable[[], SlotOwner | None],
    *,
    label: str,
    bound_seconds: float,
    slot_bytes: int,
) -> None:
    """Call `go_on` until it says true.

    `owner_now` is asked each time: an engine that lets go of the ring meanwhile sets it free.
    Raises SharedMemoryError naming what was waited for, and what the owner raises.
    """
    began = time.monotonic()
    bound = began + bound_seconds
    committing: frozenset[str] = frozenset()
    while not go_on():
        owner = owner_now()
        if owner is None:
            if go_on():
                return
            raise PyengineError("no free segment slot, although no engine holds one")
        owner.poll()
        time.sleep(_SLICE_SECONDS)
        now = time.monotonic()
        undecided = committing.intersection(owner.committing())
        if now <= bound and (undecided or not committing):
            continue
        if undecided:
            raise _no_slot(label, sorted(undecided), now - began, slot_bytes)
        waited = now - began
        cancelled = owner.cancel_holding(f"{label}: no segment slot became free in {waited:.1f} s")
        committing = frozenset(owner.committing())
        bound = now + (COMMIT_WAIT_SECONDS if committing else bound_seconds)
        if not cancelled and not committing:
            if go_on():
                return
            raise _no_slot(label, [], now - began, slot_bytes)


def _no_slot(label: str, committing: list[str], waited: float, slot_bytes: int) -> Exception:
    if committing:
        cause = f"{', '.join(committing)} is being committed, which can no longer be cancelled"
    else:
        cause = "no pending snapshot is there to be cancelled"
    return SharedMemoryError(
        f"{label}: every segment slot is in use; waited {waited:.1f} s for one, but {cause}",
        needed_bytes=slot_bytes,
        free_bytes=0,
    )
