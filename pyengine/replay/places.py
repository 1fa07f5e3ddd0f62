"""Which items of a mutable field an index names: what the native core assigns to in one call.

An item is a row's whole value where the index names rows, and one element where it reaches into
them. Slices stay first, step and count, so that a whole column needs no list of places.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Items `numbers`, or first, first + step and so on; they make an array of `shape`."""

    shape: Shape
    item_shape: Shape
    first: int
    step: int
    count: int
    numbers: NDArray[np.int64] | None = None

    def spread(self, value: NDArray[Any]) -> NDArray[Any]:
        """Return one value for each item, or one for all, contiguous; ValueError as NumPy's."""
        if value.shape in ((*self.shape, *self.item_shape), self.item_shape):
            return np.ascontiguousarray(value)  # nearly always; broadcasting takes 5 us
        extra = value.ndim - len(self.shape) - len(self.item_shape)
        if extra > 0 and value.shape[:extra] == (1,) * extra:
            value = value.reshape(value.shape[extra:])
        lead = self.shape if value.ndim > len(self.item_shape) else ()
        return np.ascontiguousarray(np.broadcast_to(value, (*lead, *self.item_shape)))


def find_places(index: Any, capacity: int, row_shape: Shape) -> Places:
    """Return what `index` names in an array of shape (capacity, *row_shape); IndexError outside."""
    if hasattr(index, "__array__"):
        index = np.asarray(index)[()]  # a tensor, or a number of no axes
    if isinstance(index, slice):
        rows = range(*index.indices(capacity))
        return Places((len(rows),), row_shape, rows.start, rows.step, len(rows))
    if isinstance(index, np.ndarray | list) and np.ndim(index) > 0:
        array = np.asarray(index)
        if array.dtype == np.bool_ and array.shape == (capacity,):
            return _listed(np.flatnonzero(array), row_shape)
        if array.dtype.kind in "iu":
            return _listed(_wrapped(array, capacity), row_shape)
    elif not isinstance(index, bool | np.bool_) and hasattr(index, "__index__"):
        row = operator.index(index)
        if not -capacity <= row < capacity:
            raise IndexError(f"index {row} is out of bounds for axis 0 with size {capacity}")
        return Places((), row_shape, row % capacity, 1, 1)
    elements = np.arange(capacity * prod(row_shape), dtype=np.int64).reshape(capacity, *row_shape)
    return _listed(np.asarray(elements[index]), ())


def _listed(numbers: NDArray[Any], item_shape: Shape) -> Places:
    flat = np.ascontiguousarray(numbers, np.int64).reshape(-1)
    return Places(numbers.shape, item_shape, 0, 1, len(flat), flat)


def _wrapped(array: NDArray[Any], capacity: int) -> NDArray[np.int64]:
    """Return rows counted from the start; IndexError outside."""
    outside = array[(array < -capacity) | (array >= capacity)]
    if outside.size:
        raise IndexError(
            f"index {outside.flat[0]} is out of bounds for axis 0 with size {capacity}"
        )
    rows = array.astype(np.int64)
    rows[rows < 0] += capacity
    return rows
