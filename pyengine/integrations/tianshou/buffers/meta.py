"""RingMeta: what stands in place of a Tianshou buffer's memory.

The library keeps its rows in a Batch, `_meta`, writes new ones by `_meta[places] = batch` and reads
by `_meta.key[places]`. Here the first is an append to a ring, and the leaves are columns over it.
So all of the library's own code (cursors, episodes, stacks, draws) runs as it is.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from tianshou.data import Batch

from pyengine.errors import ImmutableFieldError
from pyengine.integrations.tianshou.buffers.columns import RowColumn
from pyengine.integrations.tianshou.buffers.layout import (
    Layout,
    Path,
    empty_array,
    leaves,
    name_of,
)
from pyengine.integrations.tianshou.buffers.rows import BufferRows


class RingMeta(Batch):
    """The rows of a buffer, as a Batch. `views` are those of its sub-buffers, by lane."""

    # In a slot: whatever lies in a Batch's __dict__ is one of its keys.
    __slots__ = ("layout", "rows", "views")

    rows: BufferRows
    layout: Layout | None
    views: list[Any]

    @classmethod
    def over(cls, rows: BufferRows) -> RingMeta:
        """Return a Batch without keys; the first append, or `lay_out`, gives it some."""
        meta = cls()
        _set(meta, "rows", rows)
        _set(meta, "layout", None)
        _set(meta, "views", [Batch() for _ in range(rows.lanes)] if rows.lanes > 1 else [])
        return meta

    def lay_out(self, layout: Layout) -> None:
        """Make the ring, and columns over it."""
        self.rows.lay_out(layout.by_name)
        _set(self, "layout", layout)
        for path in layout.empty:
            self._put(path, lambda first, count: Batch())
        for path in layout.fields:
            self._put(path, functools.partial(self._leaf, name_of(path)))

    def _leaf(self, name: str, first: int, count: int) -> Any:
        if name in self.rows.mirrors:
            return self.rows.mirrors[name][first : first + count]
        return RowColumn(self.rows, name, first, count)

    def _put(self, path: Path, make: Any) -> None:
        """Put what `make(first row, count)` gives at `path`, here and in the views."""
        per_lane = self.rows.per_lane
        _put(self, path, make(0, self.rows.size))
        for lane, view in enumerate(self.views):
            _put(view, path, make(lane * per_lane, per_lane))

    def put_extra(self, path: Path, array: Any) -> None:
        """Let `array`, one value a row, be the extra at `path`."""
        self._put(path, lambda first, count: array[first : first + count])
        _put(self, path, array)

    @property
    def extras(self) -> dict[Path, Any]:
        """Arrays that are no fields of the ring, by path."""
        fields = {} if self.layout is None else self.layout.fields
        return {path: value for path, value in leaves(self) if path not in fields}

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, str):
            self._check_key(index)
            super().__setitem__(index, value)
            for path, array in leaves({index: self.__dict__[index]}):
                self.put_extra(path, array)
            return
        self.append(np.atleast_1d(np.asarray(index, np.int64)), value)

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def _check_key(self, key: str) -> None:
        if self.layout is not None and any(path[0] == key for path in self.layout.fields):
            raise ImmutableFieldError(
                f"{key}: the rows of this buffer live in a ring and cannot be replaced; keep other "
                "values under another key",
                field=key,
                expected="a key of your own",
                got=key,
            )

    def append(self, positions: Any, batch: Any) -> None:
        """Append one row at each position, as an assignment to stock's Batch would write it."""
        is_stacked = np.ndim(batch.done) > 0
        if self.layout is None:
            self.lay_out(Layout.of_step(batch, is_stacked=is_stacked))
        assert self.layout is not None
        given = dict(leaves(batch))
        fields = self.layout.fields
        self.rows.append(
            positions, {name_of(path): given[path] for path in fields if path in given}
        )
        extras = self.extras
        for path in given.keys() - fields.keys() - extras.keys():
            array = empty_array(given[path], self.rows.size, is_stacked=is_stacked)
            self.put_extra(path, array)
            extras[path] = array
        for path, array in extras.items():
            array[positions] = given.get(path, None if _holds_objects(array) else 0)


def _put(batch: Any, path: Path, value: Any) -> None:
    """Put a value into nested batches past the conversions of `Batch.__setattr__`."""
    for key in path[:-1]:
        inner = batch.__dict__.get(key)
        if not isinstance(inner, Batch):
            inner = batch.__dict__[key] = Batch()
        batch = inner
    batch.__dict__[path[-1]] = value


def _set(meta: RingMeta, name: str, value: Any) -> None:
    object.__setattr__(meta, name, value)


def _holds_objects(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "O"
