"""Whether to start again, and after which pause. Pure: the clock and chance are given.

A death after which a newer snapshot is there has cost little: the next pause is short, and the
count begins anew. Deaths that bring none double the pause, and `crash_limit` of them within
`crash_window` seconds are a crash loop: the next start would die as well.

A start that was ended as hung before its second tick has shown nothing, whatever snapshot its
ending brought: a bound that is too short gets one step out of each start, for ever. Such a death is
in vain, and never too long ago, for the bound alone may be as long as the window.
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


@dataclass(frozen=True, slots=True)
class Stall:
    """A start that was ended as hung, after no tick or one; `bound` is the option that says when,
    with its value."""

    ticks: int
    bound: str


@dataclass(frozen=True, slots=True)
class _InVain:
    at: float
    stall: Stall | None
    unknown: str | None


class Restarts:
    """The deaths of one supervised command so far."""

    def __init__(self, settings: Settings, *, chance: Callable[[], float] = random.random) -> None:
        self._settings = settings
        self._chance = chance
        self._in_vain: list[_InVain] = []
        self.count = 0
        """How many restarts were granted."""

    def forgive(self) -> None:
        """A snapshot of an earlier start has come since: its death, and those before it, were not
        in vain, but for starts that were ended as hung."""
        self._in_vain = [death for death in self._in_vain if death.stall is not None]

    def died(
        self,
        now: float,
        words: str,
        *,
        has_new_snapshot: bool,
        stall: Stall | None = None,
        unknown: str | None = None,
    ) -> Again | Enough:
        """Take note of a death at `now` (seconds of any steady clock) and decide.

        `unknown` is why a new snapshot may be there though none was seen: such a death counts, or
        a crash loop of a command that nobody can look into would never end, and the reason says it.
        """
        settings = self._settings
        if has_new_snapshot and stall is None:
            self._in_vain.clear()
        else:
            self._in_vain.append(_InVain(now, stall, unknown))
        recent = [
            death
            for death in self._in_vain
            if death.stall is not None or now - death.at <= settings.crash_window
        ]
        if len(recent) >= settings.crash_limit:
            why = _why(recent, now)
            limit = f"--crash-limit {settings.crash_limit}"
            return Enough("crash loop", f"{why} ({limit}); the last by {words}")
        if settings.max_restarts is not None and self.count >= settings.max_restarts:
            return Enough(
                "restarts used up",
                f"{self.count} restarts were made (--max-restarts); the last death by {words}",
            )
        self.count += 1
        doublings = min(max(0, len(self._in_vain) - 1), 30)
        pause = min(settings.backoff * 2**doublings, settings.backoff_max)
        return Again(pause * (1 + settings.jitter * self._chance()), len(self._in_vain))


def _why(deaths: list[_InVain], now: float) -> str:
    stalls = [death.stall for death in deaths if death.stall is not None]
    if not stalls:
        unknown = [death.unknown for death in deaths if death.unknown is not None]
        seconds = f"{len(deaths)} deaths within {now - deaths[0].at:.0f} s"
        seen = len(deaths) - len(unknown)
        if not unknown:
            return f"{seconds} without a new snapshot"
        if not seen:
            return f"{seconds}; whether they left new snapshots is not known: {unknown[-1]}"
        return (
            f"{seconds}, {seen} of them without a new snapshot; whether the others left one was "
            f"not known then: {unknown[-1]}"
        )
    tick = "first" if stalls[-1].ticks == 0 else "second"
    return (
        f"{len(deaths)} deaths in a row brought training no further, {len(stalls)} of them starts "
        f"that were ended as hung, the last before its {tick} tick: where it needs longer than "
        f"{stalls[-1].bound}, say so by that option"
    )
