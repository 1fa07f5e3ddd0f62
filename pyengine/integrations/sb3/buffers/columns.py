"""StepColumn: one field of an adopted replay buffer as the array that Stable-Baselines3 expects."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.integrations.sb3.buffers.rows import BufferRows
from pyengine.replay.column import RowArray


class StepColumn(RowArray):
    """An array-like of shape (buffer_size, n_envs, *shape) over rows in a ring.

    Indexing works as NumPy's and copies out no more rows than it has to; `np.asarray(column)`
    copies all. Steps without a row are zero. Assignment marks rows (`dones` and `timeouts` only,
    see BufferRows.mark), everything else is an ImmutableFieldError. Valid as long as the ring.
    """

    def __init__(self, rows: BufferRows, name: str) -> None:
        field = rows.fields[name]
        super().__init__(name, (rows.steps, rows.lanes, *field.shape), field)
        self._rows = rows

    def __getitem__(self, index: Any) -> Any:
        head, rest = _split(index)
        if head is None:
            return self[:][index]
        steps, lanes = places(self.shape[:2], head)
        found = self._rows.read(self.name, steps, lanes)
        if rest:
            return found[(*(slice(None),) * steps.ndim, *rest)]
        return found if found.ndim else found[()]

    def __setitem__(self, index: Any, value: Any) -> None:
        steps, lanes = places(self.shape[:2], index)
        self._rows.mark(self.name, steps, lanes, value)


def places(grid: tuple[int, ...], index: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return steps and lanes of the rows that `index` picks of (steps, lanes), as NumPy does."""
    steps = np.broadcast_to(np.arange(grid[0])[:, None], grid)[index]
    lanes = np.broadcast_to(np.arange(grid[1]), grid)[index]
    return np.asarray(steps), np.asarray(lanes)


def _split(index: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what an index says of steps and environments, and slices of the axes after them.

    The first is None where NumPy treats both parts together: integers or arrays among the rest, an
    ellipsis or a new axis before it.
    """
    items = index if isinstance(index, tuple) else (index,)
    axes = count = 0
    for item in items:
        if axes >= 2 or item is None or item is Ellipsis or isinstance(item, (bool, np.bool_)):
            break
        is_mask = not isinstance(item, slice) and np.asarray(item).dtype == np.bool_
        axes += np.ndim(item) if is_mask else 1
        count += 1
    head, rest = items[:count], items[count:]
    if not all(isinstance(item, slice) for item in rest) or (rest and axes != 2) or axes > 2:
        return None, ()
    return head, rest
