"""An array that grows at its end and loses its front, for what is noted beside rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIRST_ITEMS = 64


class Growing:
    """Items of one shape and dtype, oldest first. Appending costs the same however many there are.

    `items` is a view that the next change ends.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self._held: NDArray[Any] = np.empty((_FIRST_ITEMS, *shape), dtype)
        self._begin = 0
        self._end = 0

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def items(self) -> NDArray[Any]:
        """All items."""
        return self._held[self._begin : self._end]

    def append(self, item: Any) -> None:
        """Add one item, cast as an assignment to an array casts."""
        if self._end == len(self._held):
            self._make_room()
        self._held[self._end] = item
        self._end += 1

    def drop_front(self, count: int) -> None:
        """Forget the oldest `count` items."""
        self._begin += count

    def replace(self, items: Any) -> None:
        """Hold a copy of these items instead."""
        room = np.empty((max(_FIRST_ITEMS, len(items)), *self._held.shape[1:]), self._held.dtype)
        room[: len(items)] = items
        self._held, self._begin, self._end = room, 0, len(items)

    def _make_room(self) -> None:
        count = len(self)
        room = np.empty((max(_FIRST_ITEMS, 2 * count), *self._held.shape[1:]), self._held.dtype)
        room[:count] = self.items
        self._held, self._begin, self._end = room, 0, count
