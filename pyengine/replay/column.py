"""Column: one field of a ring as the array that libraries expect; RowArray: what adapters make such
arrays from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ImmutableFieldError
from pyengine.format.schema import Field
from pyengine.replay.plan import numpy_dtype
from pyengine.replay.rows import as_array

if TYPE_CHECKING:
    from pyengine.replay.ring import ReplayBuffer


class RowArray(ABC):
    """What stands for an array whose first axes are rows: indexing copies rows out.

    `np.asarray` copies all of them. A subclass says which rows an index picks.
    """

    def __init__(self, name: str, shape: tuple[int, ...], field: Field) -> None:
        self.name = name
        self.shape = shape
        self.dtype = numpy_dtype(field)

    @property
    def ndim(self) -> int:
        """Number of axes, those of rows included."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the array this stands for; memory is used only for rows that exist."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """Return a copy of what NumPy would pick."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a column cannot be seen as an array without a copy")
        whole: NDArray[Any] = self[:]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, shape={self.shape}, dtype={self.dtype})"


class Column(RowArray):
    """One field by position: an array-like of shape (capacity, *shape).

    Indexing copies rows out through the ring's verifying gather, all of one instant; positions
    without a valid row are zero, as in a freshly allocated buffer. Assignment works for mutable
    fields only (ImmutableFieldError) and takes values as `add` does. `np.asarray(column)` copies
    the whole column. Valid as long as its ring.
    """

    def __init__(self, ring: ReplayBuffer, name: str, field: Field) -> None:
        super().__init__(name, (ring.capacity, *field.shape), field)
        self._ring = ring
        self._field = field

    def __getitem__(self, index: Any) -> Any:
        first, rest = _split(index)
        if first is None or first is Ellipsis or np.ndim(first) > 1:
            return self[:][index]
        positions = np.arange(self.shape[0], dtype=np.int64)[first]
        rows = self._ring.rows_at(self.name, np.ascontiguousarray(positions))
        # The rows are numbered anew; the rest is NumPy's own indexing.
        numbers: Any = slice(None)
        if not isinstance(first, slice):
            numbers = np.arange(positions.size).reshape(positions.shape)
        return rows[(numbers, *rest)]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Assign as to an array (capacity, *shape), at once; the value is broadcast.

        Takes memory where the ring has none yet; waits for adds and the cut of a snapshot, which
        has all of the values or none. Raises ImmutableFieldError for an append field, IndexError
        outside, FieldShapeError and FieldDtypeError for a value that does not fit, with nothing
        changed.
        """
        if not self._field.mutable:
            raise ImmutableFieldError(
                f"field {self.name!r} is an append field and never changes once added; declare it "
                "Field(..., mutable=True) to assign to it",
                field=self.name,
                expected="a mutable field",
                got="an append field",
            )
        self._ring.assign(self.name, index, as_array(self.name, self._field, value))


def _split(index: Any) -> tuple[Any, tuple[Any, ...]]:
    if isinstance(index, tuple):
        return (index[0] if index else slice(None)), index[1:]
    return index, ()
