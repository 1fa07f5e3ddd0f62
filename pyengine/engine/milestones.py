"""Milestones: snapshots every so many steps that stay for ever, of weights alone by default.

One that is due stays due until it was taken: none is left out, as an ordinary snapshot may be.
"""

from __future__ import annotations

from pyengine.engine import settings
from pyengine.engine.trigger import Trigger


class Milestones:
    """When milestones are due. `every` steps (None: never); `is_full`: with everything."""

    def __init__(self, every: int | None, *, is_full: bool = False) -> None:
        if every is not None:
            every = settings.check_count("milestone_every", every, low=1)
        self.is_full = is_full
        self._trigger = Trigger(every_steps=every, budget=None)

    def start(self, step: int) -> None:
        """Begin to count from `step`."""
        self._trigger.start(step)

    def is_due(self, step: int) -> bool:
        """Take note of `step` and return whether one is to be taken."""
        return self._trigger.is_due(step)

    def taken(self, step: int) -> None:
        """Take note that one was taken at `step`."""
        self._trigger.fired(step)
