"""Assigning to a mutable field by position: what it does to a NumPy array, in one native call."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pyengine import Field, ReplayBuffer
from pyengine.errors import ClosedError, FieldShapeError

CAPACITY = 12
FIELDS = {
    "id": "int64",
    "flat": Field((), "float32", mutable=True, default=0),
    "deep": Field((2, 3), "int32", mutable=True, default=0),
}
NUMBERS = np.arange(CAPACITY)

FLAT = [
    (slice(None), 5),
    (slice(None), NUMBERS),
    (slice(2, 9, 3), [1, 2, 3]),
    (slice(None, None, -1), NUMBERS),
    (slice(9, 2, -2), 7),
    (slice(5, 5), 1),
    (slice(5, 5), []),
    (3, 1),
    (np.int8(4), 1),
    (np.array(4), 1),
    ([1, -1, 5], [7, 8, 9]),
    ([], []),
    (np.array([3, 3, 3], np.uint8), [1, 2, 3]),
    (torch.tensor([1, 2]), [1, 2]),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (NUMBERS % 3 == 0, 1),
    (NUMBERS % 3 == 0, [1, 2, 3, 4]),
    ((slice(1, 4),), 3),
    (..., NUMBERS),
    (None, NUMBERS),
    (True, 3),
    ((), 3),
]
DEEP = [
    (slice(None), 5),
    (slice(2, 6), np.arange(24).reshape(4, 2, 3)),
    (slice(2, 6), np.arange(6).reshape(2, 3)),
    (slice(2, 6), np.arange(3)),
    (slice(2, 6), np.arange(4).reshape(4, 1, 1)),
    (slice(2, 6), np.arange(6).reshape(1, 1, 2, 3)),
    (slice(6, 2, -1), np.arange(24).reshape(4, 2, 3)),
    (3, np.arange(6).reshape(2, 3)),
    ([1, 5], np.arange(12).reshape(2, 2, 3)),
    (NUMBERS > 9, np.arange(12).reshape(2, 2, 3)),
    ((slice(None), 1), 4),
    ((slice(0, 4), slice(None), 2), np.arange(8).reshape(4, 2)),
    (([0, 1, 2], 1, [0, 1, 2]), [7, 8, 9]),
    ((..., 0), np.arange(24).reshape(12, 2)),
    (np.arange(72).reshape(12, 2, 3) % 2 == 0, 1),
]


@pytest.fixture
def ring():
    with ReplayBuffer(FIELDS, CAPACITY) as made:
        made.extend(id=np.arange(CAPACITY))
        yield made


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [("flat", *case) for case in FLAT] + [("deep", *case) for case in DEEP],
)
def test_values_lie_where_numpy_puts_them(ring, name, index, value):
    column = ring.column(name)
    expected = np.full(column.shape, -1, column.dtype)
    column[:] = -1
    value = np.asarray(value, column.dtype)
    column[index] = value
    expected[index.numpy() if isinstance(index, torch.Tensor) else index] = value
    assert np.array_equal(column, expected)
    assert np.array_equal(ring.gather(ring.refs())["id"], NUMBERS)


@pytest.mark.parametrize("index", [12, -13, [0, 12], [-13], np.array([1, 99], np.uint64), (0, 0)])
def test_what_lies_outside_is_an_index_error(ring, index):
    column = ring.column("flat")
    with pytest.raises(IndexError):
        column[index] = 1
    assert not np.asarray(column).any()


def test_values_of_another_shape_are_refused(ring):
    for index, value in ((slice(0, 3), [1, 2]), (0, [1, 2]), ([0, 1], [1, 2, 3]), (..., [[1, 2]])):
        with pytest.raises(FieldShapeError):
            ring.column("flat")[index] = np.asarray(value, np.float32)
    assert not np.asarray(ring.column("flat")).any()


def test_the_native_call_stays_within_the_field(ring):
    core, value = ring.storage.core, np.ones(3, np.float32)
    for first, step, count, places in (
        (0, 1, 13, None),
        (-1, 1, 3, None),
        (11, 1, 3, None),
        (1, -1, 3, None),
        (0, 1 << 62, 3, None),
        (0, 1, 3, np.array([0, 12, 1])),
        (0, 1, 3, np.array([0, 1])),
    ):
        with pytest.raises(ValueError, match=r"items|item"):
            core.assign(0, 4, first, step, count, places, value)
    with pytest.raises(ValueError, match="do not fit"):
        core.assign(0, 4, 0, 1, 2, None, value)
    ring.close()
    with pytest.raises(ClosedError):
        core.assign(0, 4, 0, 1, 3, None, value)
