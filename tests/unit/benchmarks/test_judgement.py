"""A bar is judged by the worse end of the interval, never by the median alone."""

from __future__ import annotations

import pytest

from benchmarks.figure import unit_of
from benchmarks.judgement import Verdict, at_least, at_most, worst


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([2.1] * 10, Verdict.REACHED),
        ([2.0] * 10, Verdict.REACHED),
        ([1.9] * 10, Verdict.MISSED),
        ([1.5, 2.5] * 5, Verdict.UNRESOLVED),
        ([2.1] * 6 + [1.0] * 4, Verdict.UNRESOLVED),
        ([2.1] * 5, Verdict.UNRESOLVED),
    ],
)
def test_a_lower_bar_is_reached_only_by_the_whole_interval(ratios, verdict):
    assert at_least(ratios, 2.0) is verdict


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.1] * 10, Verdict.REACHED),
        ([1.3] * 10, Verdict.MISSED),
        ([1.1] * 6 + [2.0] * 4, Verdict.UNRESOLVED),
        ([1.1] * 5, Verdict.UNRESOLVED),
    ],
)
def test_an_upper_bar_is_reached_only_by_the_whole_interval(ratios, verdict):
    assert at_most(ratios, 1.2) is verdict


def test_a_line_of_two_bars_is_as_bad_as_the_worse():
    assert worst(Verdict.REACHED, Verdict.UNRESOLVED) is Verdict.UNRESOLVED
    assert worst(Verdict.MISSED, Verdict.UNRESOLVED) is Verdict.MISSED


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("sb3_rows_per_s", "rows_per_s"),
        ("writer_MB_per_s", "MB_per_s"),
        ("stall_ms", "ms"),
        ("ratio", "ratio"),
    ],
)
def test_the_unit_of_a_sample_is_the_end_of_its_name(name, unit):
    assert unit_of(name) == unit
