"""What a ring asks of the engine that tracks it."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyengine.engine.engine import SnapshotEngine


class RingOwner:
    """Stands between a ring and its engine; holds the engine weakly and is inert without it.

    A ring calls it while it waits for a free slot, with none of its locks held.
    """

    def __init__(self, engine: SnapshotEngine) -> None:
        self._engine = weakref.ref(engine)
        self._pid = os.getpid()

    def poll(self) -> None:
        """Look after the writer: hand over what it lacks, replace it when it died."""
        engine = self._live()
        if engine is not None:
            engine._look_after_writer()

    def cancel_holding(self, reason: str) -> int:
        """Give up the pending snapshots that still hold rows; return how many there were."""
        engine = self._live()
        return engine._cancel_pending(reason) if engine is not None else 0

    def committing(self) -> tuple[str, ...]:
        """Return the snapshots that are being committed, as people are told of them."""
        engine = self._live()
        return engine._committing() if engine is not None else ()

    def _live(self) -> SnapshotEngine | None:
        return self._engine() if self._pid == os.getpid() else None
