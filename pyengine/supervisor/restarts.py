"""Whether to start again, and after which pause. Pure: the clock and chance are given.

A death after which a newer snapshot is there has cost little: the next pause is short, and the
count begins anew. Deaths that bring none double the pause, and `crash_limit` of them within
`crash_window` seconds are a crash loop: the next start would die as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pyengine.supervisor.settings import Settings


@dataclass(frozen=True, slots=True)
class Again:
    """Start again after a pause; `in_vain` deaths in a row brought no new snapshot."""

    pause_seconds: float
    in_vain: int


@dataclass(frozen=True, slots=True)
class Enough:
    """Do not start again."""

    result: Literal["crash loop", "restarts used up"]
    reason: str


class Restarts:
    """The deaths of one supervised command so far."""

    def __init__(self, settings: Settings, *, chance: Callable[[], float] = random.random) -> None:
        self._settings = settings
        self._chance = chance
        self._in_vain: list[float] = []
        self.count = 0
        """How many restarts were granted."""

    def died(self, now: float, words: str, *, has_new_snapshot: bool) -> Again | Enough:
        """Take note of a death at `now` (seconds of any steady clock) and decide."""
        settings = self._settings
        if has_new_snapshot:
            self._in_vain.clear()
        else:
            self._in_vain.append(now)
        recent = [at for at in self._in_vain if now - at <= settings.crash_window]
        if len(recent) >= settings.crash_limit:
            return Enough(
                "crash loop",
                f"{len(recent)} deaths within {now - recent[0]:.0f} s without a new snapshot "
                f"(--crash-limit {settings.crash_limit}); the last by {words}",
            )
        if settings.max_restarts is not None and self.count >= settings.max_restarts:
            return Enough(
                "restarts used up",
                f"{self.count} restarts were made (--max-restarts); the last death by {words}",
            )
        self.count += 1
        doublings = min(max(0, len(self._in_vain) - 1), 30)
        pause = min(settings.backoff * 2**doublings, settings.backoff_max)
        return Again(pause * (1 + settings.jitter * self._chance()), len(self._in_vain))
