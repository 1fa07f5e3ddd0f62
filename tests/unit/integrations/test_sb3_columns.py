"""Columns of adopted replay buffers read as stock's arrays do, and refuse to be rewritten."""

from __future__ import annotations

import numpy as np
import pytest
from sb3_pairs import BY_NAME, CASES, STEPS, arrays_of, assert_same_draws, make_pair, random_step

from pyengine.errors import ImmutableFieldError

each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@each_case
@pytest.mark.parametrize("rows", [0, 1, 5, STEPS - 1, STEPS, 2 * STEPS + 3])
def test_columns_hold_what_stocks_arrays_hold(case, rows):
    pair = make_pair(case)
    pair.add(rows)
    expected, columns = arrays_of(pair.stock), arrays_of(pair.ring)
    assert list(columns) == list(expected)
    for name, array in expected.items():
        column = columns[name]
        np.testing.assert_array_equal(np.asarray(column), array, strict=True)
        for attribute in ("shape", "dtype", "ndim", "size", "nbytes"):
            assert getattr(column, attribute) == getattr(array, attribute)
        assert len(column) == len(array)
        assert np.asarray(column, np.float64).dtype == np.float64


@pytest.mark.parametrize("rows", [5, STEPS + 3])
def test_columns_index_as_arrays_do(rows):
    pair = make_pair(BY_NAME["overlap-images"])
    pair.add(rows)
    array, column = pair.stock.observations, pair.ring.observations
    batch, envs = np.array([0, 4, 11, 5, 4]), np.array([2, 0, 1, 1, 0])
    keys = [
        0, -1, np.int64(3), slice(2, 9), slice(None, None, -2), [1, 1, 7], batch, (3, 1),
        (-2, -1), (slice(None), 0), (slice(1, 4), slice(1, None)), (batch, envs), (batch, envs, 0),
        (batch[:, None], envs[None]), (batch, slice(0, 2)), (slice(3), [2, 0]), (3, 1, 0, 2, 1),
        (batch, envs, slice(0, 1), ..., slice(2)), (batch, envs, slice(None)), (3, envs, slice(1)),
        (batch, slice(None), 0), (..., 0), Ellipsis, (None, 0), (0, None), (0, ...), (), True,
        array[:, :, 0, 0, 0] > 60, array[:, 0, 0, 0, 0] > 60, (batch, [True, False, True][:3], 0),
    ]  # fmt: skip
    for key in keys[:-1]:
        np.testing.assert_array_equal(column[key], array[key], strict=True)
        assert type(column[key]) is type(array[key])


def test_an_index_outside_is_an_index_error():
    pair = make_pair(BY_NAME["box-3-envs"])
    pair.add(4)
    for key in (STEPS, (0, 3), [0, STEPS], (0, 0, 0, 0)):
        with pytest.raises(IndexError):
            pair.stock.observations[key]
        with pytest.raises(IndexError):
            pair.ring.observations[key]


def test_a_column_is_never_a_view():
    pair = make_pair(BY_NAME["box"])
    pair.add(3)
    pair.ring.observations[:][...] = 0
    np.testing.assert_array_equal(pair.ring.observations[:3], pair.stock.observations[:3])
    with pytest.raises(ValueError, match="copy"):
        np.array(pair.ring.observations, copy=False)


@pytest.mark.parametrize("name", ["dones", "timeouts"])
@pytest.mark.parametrize("rows", [5, 2 * STEPS + 5])
def test_dones_and_timeouts_of_rows_can_be_marked(name, rows):
    pair = make_pair(BY_NAME["n-step"])
    pair.add(rows)
    for key, value in [(3, True), ((1, 0), 0.0), ((slice(0, 2), 1), [1, 0]), ([2, -1 % 5], 1.0)]:
        getattr(pair.stock, name)[key] = value
        getattr(pair.ring, name)[key] = value
        assert_same_draws(pair.stock, pair.ring)
    np.testing.assert_array_equal(np.asarray(getattr(pair.ring, name)), getattr(pair.stock, name))
    pair.add(STEPS - 2)
    assert_same_draws(pair.stock, pair.ring)
    pair.add(STEPS)
    assert_same_draws(pair.stock, pair.ring)


def test_a_mark_goes_with_its_row():
    pair = make_pair(BY_NAME["box-3-envs"])
    pair.add(STEPS)
    pair.ring.dones[2] = 1
    pair.ring.dones[4] = 1
    pair.add(3)
    np.testing.assert_array_equal(pair.ring.dones[2], pair.stock.dones[2])
    assert pair.ring.dones[4].all()
    marks = pair.ring.rows.get_state()["marks"]["dones"]
    assert len(marks["refs"]) == 3


def test_everything_else_is_refused():
    pair = make_pair(BY_NAME["box"])
    pair.add(3)
    for name in ("observations", "next_observations", "actions", "rewards"):
        with pytest.raises(ImmutableFieldError, match=name):
            getattr(pair.ring, name)[0] = 0
    with pytest.raises(ImmutableFieldError, match="step 3 holds no row yet"):
        pair.ring.dones[2:5] = 1
    with pytest.raises(AttributeError):
        pair.ring.pos = 0
    assert_same_draws(pair.stock, pair.ring)


def test_rewriting_rows_by_the_thousand_is_refused():
    pair = make_pair(BY_NAME["box-3-envs"], 1400)
    step = random_step(pair.case, np.random.default_rng(1))
    for buffer in (pair.stock, pair.ring):
        for _ in range(1400):
            buffer.add(*step)
    with pytest.raises(ImmutableFieldError, match="up to 4096"):
        pair.ring.dones[:] = 1
    assert_same_draws(pair.stock, pair.ring)
