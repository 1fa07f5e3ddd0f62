"""When a tick takes a snapshot: on crossing, and no more often than the budget allows.

A trigger fires when the step passes a multiple of `every_steps` (however far it jumps, so that
vectorised loops never miss one) or when `every_seconds` have gone by, whichever comes first.

Budget: a snapshot costs max(stall, persist time). Where that is more than `budget` of the interval,
the next one waits until cost / budget seconds have passed since the last; what became due meanwhile
stays due, and a warning names the numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyengine.engine import settings
from pyengine.events import logger

_WORTH_A_WORD = 1.5


class Trigger:
    """The decision of one engine. Not thread-safe: the thread that ticks owns it."""

    def __init__(
        self,
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        budget: float | None = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every_steps is not None:
            every_steps = settings.check_count("every_steps", every_steps, low=1)
        if every_seconds is not None:
            every_seconds = settings.check_seconds(
                "every_seconds", every_seconds, may_be_zero=False
            )
        self._every_steps = every_steps
        self._every_seconds = every_seconds
        self._budget = None if budget is None else settings.check_share("budget", budget)
        self._clock = clock
        self._step = 0
        self._fired_at = clock()
        self._is_crossed = False
        self._stall_seconds = 0.0
        self._persist_seconds = 0.0
        self._told_seconds = 0.0

    def start(self, step: int) -> None:
        """Begin to count from `step`, now: what lies before it does not fire."""
        self._step = step
        self._fired_at = self._clock()
        self._is_crossed = False

    def is_due(self, step: int) -> bool:
        """Take note of `step` and return whether a snapshot is to be taken at it."""
        if self._every_steps is None and self._every_seconds is None:
            return False
        if self._every_steps is not None:
            self._is_crossed |= step // self._every_steps > self._step // self._every_steps
        self._step = step
        elapsed = self._clock() - self._fired_at
        due = self._is_crossed
        if self._every_seconds is not None:
            due = due or elapsed >= self._every_seconds
        return due and not self._is_too_soon(elapsed)

    def fired(self, step: int) -> None:
        """Take note that a snapshot was taken at `step`, or that one is left out there."""
        self.start(step)

    def stalled(self, seconds: float) -> None:
        """Learn for how long the last snapshot held the loop."""
        self._stall_seconds = seconds

    def persisted(self, seconds: float) -> None:
        """Learn how long the writer took for the last snapshot that it committed."""
        self._persist_seconds = seconds

    def _is_too_soon(self, elapsed: float) -> bool:
        if self._budget is None:
            return False
        cost = max(self._stall_seconds, self._persist_seconds)
        wanted = cost / self._budget
        if elapsed >= wanted:
            return False
        if wanted > self._told_seconds * _WORTH_A_WORD:
            self._told_seconds = wanted
            logger.warning(
                "a snapshot was due %.3g s after the last, and one costs %.3g s (stall %.3g s, "
                "persisting %.3g s): to stay within %.3g %% of the time, snapshots are %.3g s "
                "apart at least (budget=%g; None for no limit)",
                elapsed,
                cost,
                self._stall_seconds,
                self._persist_seconds,
                100 * self._budget,
                wanted,
                self._budget,
            )
        return True
