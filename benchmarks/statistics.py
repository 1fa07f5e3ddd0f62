"""Medians, high percentiles and what may be said about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

BOOTSTRAP_DRAWS = 2_000


@dataclass(frozen=True, slots=True)
class Summary:
    """Median with its 95 % bootstrap interval, 99th percentile and largest of `count` samples."""

    count: int
    median: float
    low: float
    high: float
    p99: float
    largest: float


def summarize(samples: Sequence[float]) -> Summary:
    """Describe at least one sample."""
    values = np.asarray(samples, np.float64)
    low, high = interval(lambda drawn: np.median(drawn, axis=-1), values)
    return Summary(
        count=len(values),
        median=float(np.median(values)),
        low=low,
        high=high,
        p99=float(np.percentile(values, 99)),
        largest=float(values.max()),
    )


def interval(
    statistic: Callable[[np.ndarray], np.ndarray], values: np.ndarray
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval (percentile method, fixed seed) of a statistic of rows."""
    rng = np.random.default_rng(0)
    drawn = values[rng.integers(len(values), size=(BOOTSTRAP_DRAWS, len(values)))]
    low, high = np.percentile(statistic(drawn), (2.5, 97.5))
    return float(low), float(high)


def paired_ratios(ours: Sequence[float], limits: Sequence[float]) -> list[float]:
    """Return ours over limit for each interleaved pair: what drifts in the machine cancels."""
    return [one / limit for one, limit in zip(ours, limits, strict=True)]
