"""How a setting changes over a run, as a function of a count that is saved with it."""

from __future__ import annotations

from dataclasses import dataclass

from pyengine.format.counts import as_count, as_number


@dataclass(frozen=True, slots=True)
class LinearSchedule:
    """From `start` to `end` in equal steps over `count` calls, then `end`; an immutable value.

    `LinearSchedule(0.4, 1.0, 100_000)` is the annealed beta of Schaul et al. 2016. Numbers are at
    least 0, `count` at least 1; ConfigError otherwise.
    """

    start: float
    end: float
    count: int

    def __post_init__(self) -> None:
        as_number("start", self.start)
        as_number("end", self.end)
        as_count("count", self.count, least=1)

    def __call__(self, number: int) -> float:
        """Return the value at call `number`, counted from 0."""
        if number >= self.count:
            return self.end
        return self.start + (self.end - self.start) * (number / self.count)
