"""Waiting for a free segment slot: the disk, or the writer, is slower than the inserts.

In slices, with no lock held, so that signals are seen and the writer is looked after. At the bound
the pending snapshots that hold slots are cancelled, loudly. One that is being committed can no
longer be cancelled, and ends soon by itself: it is waited for, COMMIT_WAIT_SECONDS at most. So long
are full segments waited for that leave memory once they are written, where nothing else can help;
each one that is written begins the time anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyengine.config import COMMIT_WAIT_SECONDS, SPILL_WAIT_SECONDS
from pyengine.replay.owner import SlotOwner

_SLICE_SECONDS = 0.001


def wait_for_slot(
    go_on: Callable[[], bool],
    owner_now: Callable[[], SlotOwner | None],
    unwritten_now: Callable[[], int],
    *,
    label: str,
    bound_seconds: float,
    give_up: Callable[[str], Exception],
) -> None:
    """Call `go_on` until it says true.

    `owner_now` is asked each time: an engine that lets go of the ring meanwhile sets it free.
    `unwritten_now` tells how many segments will leave memory once they are written. Raises what
    `give_up` makes of the cause, and what the owner raises.
    """
    began = progress_at = time.monotonic()
    bound = began + bound_seconds
    committing: frozenset[str] = frozenset()
    unwritten = unwritten_now()
    while not go_on():
        owner = owner_now()
        if owner is None:
            if go_on():
                return
            raise give_up("no engine tracks the ring")
        owner.poll()
        time.sleep(_SLICE_SECONDS)
        now = time.monotonic()
        former, unwritten = unwritten, unwritten_now()
        if unwritten < former:
            progress_at = now
            bound = max(bound, now + bound_seconds)
        undecided = committing.intersection(owner.committing())
        if now <= bound and (undecided or not committing):
            continue
        waited = f"{now - began:.1f} s"
        if undecided:
            raise give_up(
                f"waited {waited} for one, but {', '.join(sorted(undecided))} is being committed, "
                "which can no longer be cancelled"
            )
        cancelled = owner.cancel_holding(f"{label}: no segment slot became free in {waited}")
        committing = frozenset(owner.committing())
        bound = now + (COMMIT_WAIT_SECONDS if committing else bound_seconds)
        if cancelled or committing:
            continue
        if unwritten and now - progress_at <= SPILL_WAIT_SECONDS:
            continue
        if go_on():
            return
        raise give_up(
            f"waited {waited} for one, but no pending snapshot is there to be cancelled"
            + (f", and of {unwritten} full segments none was written" if unwritten else "")
        )
