"""How the figure of full speed reads what a watched restore tells."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.figure import Course, Measured
from benchmarks.figures.full_speed import batches_until, full_speed_seconds, rate_over_time, told


def test_full_speed_begins_after_the_slow_stretch_not_after_a_hiccup():
    took = np.full(3_200, 0.01)
    took[:640] = 0.05
    took[1_600:1_632] = 0.5
    ends = np.concatenate([[0.0], np.cumsum(took)])
    seconds, warm = full_speed_seconds(ends)
    assert warm == pytest.approx(0.01)
    assert seconds == pytest.approx(640 * 0.05)


def test_a_rate_over_time_counts_each_batch_once():
    ends = np.cumsum(np.random.default_rng(1).exponential(0.01, 500))
    course = rate_over_time(ends, ends[-1])
    width = course.seconds[1] - course.seconds[0]
    assert sum(course.values) * width == pytest.approx(len(ends))


def test_batches_beside_the_warming_are_those_that_ended_before_it_did():
    assert batches_until(np.array([1.0, 1.5, 2.5, 3.0]), 2.5) == [0.5, 1.0]
    assert told([]) == "it never ended"


def test_courses_are_kept_with_a_figure():
    measured = Measured([], {"a_s": [1.0]}, courses={"cold_batches_per_s": Course([1.0], [2.0])})
    assert Measured.from_json(json.loads(json.dumps(measured.to_json()))) == measured
