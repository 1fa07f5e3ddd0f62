"""What may be said about a bar: reached or missed only where the whole interval is on one side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from benchmarks.statistics import summarize

FEWEST_SAMPLES = 6
"""The range of six samples holds the median with 97 %, that of five with less than 95 %."""


class Verdict(str, Enum):
    """Ordered from best to worst, so that several bars of one line make one verdict."""

    REACHED = "reached"
    UNJUDGED = "no bar"
    SKIPPED = "skipped"
    UNRESOLVED = "not resolved"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One bar, what was measured against it as a person reads it, and the verdict."""

    bar: str
    text: str
    verdict: Verdict


def at_most(samples: Sequence[float], bar: float) -> Verdict:
    """Judge the median: its worse end is the upper one."""
    summary = summarize(samples)
    if summary.count < FEWEST_SAMPLES:
        return Verdict.UNRESOLVED
    if summary.high <= bar:
        return Verdict.REACHED
    return Verdict.MISSED if summary.low > bar else Verdict.UNRESOLVED


def at_least(samples: Sequence[float], bar: float) -> Verdict:
    """Judge the median: its worse end is the lower one."""
    summary = summarize(samples)
    if summary.count < FEWEST_SAMPLES:
        return Verdict.UNRESOLVED
    if summary.low >= bar:
        return Verdict.REACHED
    return Verdict.MISSED if summary.high < bar else Verdict.UNRESOLVED


def limit(*, reached: bool) -> Verdict:
    """Judge a bar on a percentile or a largest value, which has no interval of its own."""
    return Verdict.REACHED if reached else Verdict.MISSED


def worst(*verdicts: Verdict) -> Verdict:
    order = list(Verdict)
    return max(verdicts, key=order.index)


def format_ratio(ratios: Sequence[float]) -> str:
    """Return "1.10 x (1.05 to 1.16)": median of paired ratios and its interval."""
    summary = summarize(ratios)
    digits = 2 if summary.median < 20 else 0
    return f"{summary.median:.{digits}f} x ({summary.low:.{digits}f} to {summary.high:.{digits}f})"
