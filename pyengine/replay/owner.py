"""The seam between a ring and the engine that tracks it."""

from __future__ import annotations

from typing import Protocol


class SlotOwner(Protocol):
    """Who persists a ring's segments; called by the ring while it waits for a free slot."""

    def poll(self) -> None:
        """Look after the writer: notice its death, replace it.

        May take as long as starting a process does, and must not wait for this ring: the slot that
        it waits for may never come.
        """

    def cancel_holding(self, reason: str) -> int:
        """Cancel the pending snapshots that hold segments; return how many were cancelled."""

    def committing(self) -> tuple[str, ...]:
        """Return the snapshots that are being committed: too late to cancel, not yet decided."""
