"""RowColumn: one field of an adopted buffer as the array that Tianshou expects in its Batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.integrations.tianshou.buffers.rows import BufferRows
from pyengine.replay.column import RowArray


class RowColumn(RowArray):
    """An array-like of shape (rows, *shape) over the rows from `first` on.

    Indexing works as NumPy's and copies out no more rows than it has to; `np.asarray(column)`
    copies all. Places without a row are zero. Assignment is an ImmutableFieldError, but for what
    hindsight replay lays over rows (see BufferRows.lay). Valid as long as the ring.
    """

    def __init__(self, rows: BufferRows, name: str, first: int, count: int) -> None:
        field = rows.fields[name]
        super().__init__(name, (count, *field.shape), field)
        self._rows = rows
        self._first = first

    def __getitem__(self, index: Any) -> Any:
        head, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
        if head is None or head is Ellipsis or (rest and not _is_slices(rest)):
            return np.asarray(self)[index]
        positions = self._positions(head)
        found = self._rows.read(self.name, positions)
        if rest:
            return found[(*(slice(None),) * positions.ndim, *rest)]
        return found if found.ndim else found[()]

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, tuple):
            whole = np.asarray(self)
            whole[index] = value
            self._rows.lay(self.name, self._positions(index[0]), whole[index[0]])
            return
        self._rows.lay(self.name, self._positions(index), value)

    def _positions(self, head: Any) -> NDArray[np.int64]:
        """Return the rows that `head` picks, by NumPy's own rules."""
        count = len(self)
        if isinstance(head, np.ndarray) and head.dtype.kind == "i":
            if head.size and not (-count <= head.min() and head.max() < count):
                raise IndexError(f"index out of bounds for {count} rows")
            places = np.where(head < 0, head + count, head)
        else:
            places = np.asarray(np.arange(count)[head])
        return places.astype(np.int64, copy=False) + self._first


def _is_slices(rest: tuple[Any, ...]) -> bool:
    return all(isinstance(item, slice) or item is Ellipsis for item in rest)
