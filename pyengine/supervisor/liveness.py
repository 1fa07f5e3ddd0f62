"""Whether a command still does anything. Pure: the clock and the signs are given.

A sign of life is any change: of the bytes of output, of the count of ticks. Who asks too rarely (a
supervisor that was stopped itself, a machine that slept) learns nothing about the command from it:
such gaps do not count.
"""

from __future__ import annotations


class Liveness:
    """The time without a sign of life, as seen by someone who looks every `interval` seconds."""

    def __init__(self, now: float, timeout: float | None) -> None:
        self._timeout = timeout
        self.interval = 1.0 if timeout is None else min(1.0, max(0.02, timeout / 10))
        self._signs: tuple[int, ...] = ()
        self._looked_at = now
        self.silent_seconds = 0.0

    def look(self, now: float, *signs: int) -> bool:
        """Take note of the signs at `now`; return whether the command hangs."""
        passed = now - self._looked_at
        self._looked_at = now
        if signs != self._signs:
            self._signs = signs
            self.silent_seconds = 0.0
        elif passed <= 3 * self.interval + 1.0:
            self.silent_seconds += passed
        return self._timeout is not None and self.silent_seconds >= self._timeout
