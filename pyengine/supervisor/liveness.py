"""Whether a command still does anything. Pure: the clock and the signs are given.

A sign of life is any change: of the bytes of output, of the count of ticks. Two bounds hold: the
start's until its first tick (imports, compiling, a restore), the hang's between two ticks. Who asks
too rarely (a supervisor that was stopped itself, a machine that slept) learns nothing about the
command from it: such gaps do not count.
"""

from __future__ import annotations


class Liveness:
    """The time without a sign of life, as seen by someone who looks every `interval` seconds.

    A bound of None means: no limit.
    """

    def __init__(self, now: float, start_timeout: float | None, hang_timeout: float | None) -> None:
        self._start_timeout = start_timeout
        self._hang_timeout = hang_timeout
        bounds = [bound for bound in (start_timeout, hang_timeout) if bound is not None]
        self.interval = min([1.0, *(max(0.02, bound / 10) for bound in bounds)])
        self._signs: tuple[int, ...] = ()
        self._looked_at = now
        self.silent_seconds = 0.0

    def look(self, now: float, *signs: int, has_ticked: bool) -> bool:
        """Take note of the signs at `now`; return whether the command hangs."""
        passed = now - self._looked_at
        self._looked_at = now
        if signs != self._signs:
            self._signs = signs
            self.silent_seconds = 0.0
        elif passed <= 3 * self.interval + 1.0:
            self.silent_seconds += passed
        bound = self._hang_timeout if has_ticked else self._start_timeout
        return bound is not None and self.silent_seconds >= bound
