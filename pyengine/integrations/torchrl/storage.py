"""RingStorage: a storage for TorchRL's replay buffers whose rows live in a ring.

It takes the place of LazyTensorStorage: the first data that is written decides what an element is,
a round-robin writer appends, samplers draw indices, and rows are copied out by one native call.
Nothing of a row changes in place, but the keys that are declared mutable.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import LazyStackedTensorDict, TensorDictBase
from torchrl.data.replay_buffers.storages import TensorStorage
from torchrl.data.replay_buffers.writers import RoundRobinWriter

from pyengine.errors import ConfigError, ImmutableFieldError
from pyengine.format.counts import as_count
from pyengine.integrations.torchrl.checkpointer import RingStorageCheckpointer, refill
from pyengine.integrations.torchrl.columns import StorageColumn
from pyengine.integrations.torchrl.layout import Layout
from pyengine.integrations.torchrl.rows import StorageRows

Steps = NDArray[np.int64]

_INTEGERS = (int, np.integer)


class RingStorage(TensorStorage):
    """Rows of a TorchRL replay buffer in shared memory, saved row by row as they come.

        rb = TensorDictReplayBuffer(storage=RingStorage(1_000_000), batch_size=256)

    `max_size`, `ndim` and `device` are those of LazyTensorStorage: `device` is where samples go,
    the rows stay in shared memory. Elements are tensors or TensorDicts of tensors, all alike; what
    the first one has decides (SchemaError for what a ring cannot keep, MissingFieldError and
    UnknownFieldError for elements with other keys). `memory_limit` bounds the bytes of rows in
    memory once a run tracks it.

    `mutable` names keys that may change once added (`set_at_`, `update_`, writers that rewrite
    rows), or is True for all: they are copied whole at each snapshot. Changing another key is an
    ImmutableFieldError. Reading copies: of `rb[:]` a column is read when it is looked at.

    Not thread-safe beyond what the buffer's own lock gives. Belongs to one process (ConfigError
    where it is pickled).
    """

    _default_checkpointer = RingStorageCheckpointer
    max_size: int
    _rows: StorageRows | None = None

    def __init__(
        self,
        max_size: int,
        *,
        ndim: int = 1,
        device: torch.device | str = "cpu",
        mutable: Collection[Any] | bool = (),
        memory_limit: int | None = None,
    ) -> None:
        max_size = as_count("max_size", max_size, least=1)
        super().__init__(None, max_size, device=device, ndim=as_count("ndim", ndim, least=1))
        self._mutable = mutable
        self._memory_limit = memory_limit

    @property
    def rows(self) -> StorageRows:
        """The rows and their ring; RuntimeError before the first element, as for stock storages."""
        if self._rows is None:
            raise RuntimeError("Cannot get elements out of a non-initialized storage.")
        return self._rows

    @property
    def index_device(self) -> torch.device:
        """Where samples and their indices are."""
        return torch.device("cpu" if self.device == "auto" else self.device)

    @property
    def is_mutable(self) -> bool:
        """Whether all keys may change."""
        return self._mutable is True

    @property
    def mutable_keys(self) -> list[str]:
        """The keys that may change, as text, sorted; `["*"]` for all."""
        if self.is_mutable:
            return ["*"]
        keys: Collection[Any] = self._mutable if isinstance(self._mutable, Collection) else ()
        return sorted(key if isinstance(key, str) else "/".join(key) for key in keys)

    def make_rows(self, layout: Layout) -> None:
        """Become a storage of elements of this layout; without rows yet."""
        steps = -(-self.max_size // layout.lanes)
        keys: Collection[Any] = self._mutable if isinstance(self._mutable, Collection) else ()
        names = None if self.is_mutable else {layout.name_of(key) for key in keys}
        self._rows = StorageRows(layout, steps, names, self._memory_limit)
        self.max_size = steps * layout.lanes
        self.initialized = True
        self._storage = self._columns(steps)

    def _columns(self, steps: int) -> Any:
        layout = self.rows.layout
        lead = (steps, *layout.lane_shape)
        columns = {name: StorageColumn.over(self, name, lead) for name in layout.leaves}
        return layout.wrap(columns, lead, None if self.device == "auto" else self.device)

    @property
    def _len(self) -> int:
        return self._rows.length * self._rows.lanes if self._rows is not None else 0

    @_len.setter
    def _len(self, value: int) -> None:
        # Stock code counts here what it has written over; what was appended a ring knows.
        if self._rows is not None and self._rows.is_mutable:
            self._rows.count_written(value // self._rows.lanes)
        elif value != self._len:
            raise ImmutableFieldError(
                "rows of a RingStorage are appended, and written over where all keys are mutable: "
                "RingStorage(..., mutable=True)",
                field="length",
                expected=self._len,
                got=value,
            )

    @property
    def _total_shape(self) -> torch.Size | None:
        if self._rows is None:
            return None
        return torch.Size((self._rows.steps, *self._rows.layout.lane_shape))

    def __len__(self) -> int:
        return self._len

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Append elements, or write over elements whose keys are mutable.

        Without `set_cursor` some keys are enough. Raises ImmutableFieldError for a cursor that does
        not go on where the last element ended, and for keys that do not change; RowError and
        SharedMemoryError as `ReplayBuffer.extend`.
        """
        steps = self._steps_of(cursor)
        try:
            self._set(cursor, steps, data, appends=set_cursor)
        except BaseException:
            if set_cursor:
                self._take_back(steps)
            raise
        if set_cursor:
            self._set_last_cursor(cursor)
        self._bump_mutation_revision()

    def _set(self, cursor: Any, steps: Steps, data: Any, *, appends: bool) -> None:
        data = _stacked(data)
        is_one = isinstance(cursor, _INTEGERS)
        if self._rows is None:
            self.make_rows(Layout.of(data if is_one else data[0], self.ndim - 1))
        rows = self.rows
        goes_on = appends and not rows.is_mutable
        if goes_on and not _goes_on(steps, rows.position, rows.steps):
            self._refuse(rows, steps)
        values = rows.layout.split(data, None if is_one else len(steps), some=not appends)
        if goes_on:
            rows.append(values, is_one=is_one)
            return
        self._write_over(rows, steps, values)
        if appends:
            rows.count_written(max(rows.length, int(steps.max()) + 1))

    def _take_back(self, steps: Steps) -> None:
        """Let writers go on where they were: they move their cursor before they write."""
        for buffer in self._attached_entities:
            writer = getattr(buffer, "_writer", None)
            if isinstance(writer, RoundRobinWriter):
                writer._cursor = int(steps[0])
                writer._write_count -= len(steps)

    def _write_over(self, rows: StorageRows, steps: Steps, values: dict[str, torch.Tensor]) -> None:
        lanes = np.tile(np.arange(rows.lanes), len(steps))
        flat = {
            name: value.reshape((-1, *rows.layout.leaves[name].shape))
            for name, value in values.items()
        }
        rows.write(np.repeat(steps, rows.lanes), lanes, flat)

    def _refuse(self, rows: StorageRows, steps: Steps) -> None:
        raise ImmutableFieldError(
            f"a row was to be written at {int(steps[0])}, the next one goes to {rows.position}: a "
            "RingStorage takes round-robin writers; for others, or to write over rows, make all "
            "keys mutable: RingStorage(..., mutable=True)",
            field="index",
            expected=rows.position,
            got=int(steps[0]),
        )

    def _steps_of(self, cursor: Any) -> Steps:
        """Return what a cursor picks of the first dimension."""
        if isinstance(cursor, slice):
            return np.arange(*cursor.indices(self._max_size_along_dim0()))
        if isinstance(cursor, torch.Tensor):
            cursor = cursor.cpu()
        return np.atleast_1d(np.asarray(cursor, np.int64))

    def get(self, index: Any) -> Any:
        """Return elements, copied; all of them as columns that are read when looked at.

        An index is what tensors take: integers, slices, masks, tensors or a tuple of these.
        """
        rows = self.rows
        if isinstance(index, slice) and index == slice(None):
            return self._columns(rows.length)
        head, rest = self._split(index)
        steps, lanes, lead = self._places(head)
        values = rows.gather(rows.refs(steps, lanes), self.index_device)
        found = rows.layout.join(values, lead, None if self.device == "auto" else self.device)
        return found[(*(slice(None),) * len(lead), *rest)] if rest else found

    def read(self, field: str, index: Any) -> torch.Tensor:
        """Return one field at `index`, which may reach into the axes of a row."""
        rows = self.rows
        if isinstance(index, torch.Tensor) and index.dtype == torch.bool and index.ndim > self.ndim:
            return self.read(field, slice(None))[index]
        head, rest = self._split(index)
        if head is None:
            return self.read(field, slice(None))[index]
        steps, lanes, lead = self._places(head)
        found = rows.read(field, rows.refs(steps, lanes)).to(self.index_device)
        found = found.reshape((*lead, *found.shape[1:]))
        return found[(*(slice(None),) * len(lead), *rest)] if rest else found

    def write(self, field: str, index: Any, value: Any) -> None:
        """Assign to one field as to a tensor (steps, *lanes, *shape); ImmutableFieldError."""
        rows = self.rows
        rows.check_mutable(field)
        head, rest = self._split(index)
        if head is None or rest:
            # A part of rows: read them, change the part, write them.
            whole = self.read(field, slice(None))
            whole[index] = value
            head, value = slice(None), whole
        steps, lanes, lead = self._places(head)
        leaf = rows.layout.leaves[field]
        values = torch.as_tensor(value, dtype=leaf.dtype).detach().cpu()
        values = values.expand((*lead, *leaf.shape)).reshape((-1, *leaf.shape))
        rows.write(steps, lanes, {field: values})
        self._bump_mutation_revision()

    def _split(self, index: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return what an index says of steps and lanes, and slices of the axes behind them.

        The first is None where torch treats both parts together.
        """
        if not isinstance(index, tuple):
            return (None, ()) if index is None or index is Ellipsis else (index, ())
        if any(item is None or item is Ellipsis for item in index[: self.ndim]):
            return None, ()
        head, rest = index[: self.ndim], index[self.ndim :]
        if not all(isinstance(item, slice) for item in rest):
            return None, ()
        return head, rest

    def _places(self, index: Any) -> tuple[Steps, Steps, tuple[int, ...]]:
        """Return steps and lanes, flat, of the rows that an index picks, and the shape they have.

        IndexError for rows that are not there.
        """
        rows = self.rows
        items = tuple(_as_numpy(item) for item in (index if isinstance(index, tuple) else (index,)))
        grid = (rows.length, *rows.layout.lane_shape)
        if len(items) == self.ndim and all(_is_numbers(item) for item in items):
            parts = np.broadcast_arrays(*(_wrapped(i, n) for i, n in zip(items, grid, strict=True)))
            steps, lead = parts[0], parts[0].shape
            flat = [part.reshape(-1) for part in parts]
            lanes = np.ravel_multi_index(tuple(flat[1:]), grid[1:]) if self.ndim > 1 else None
            steps = flat[0]
            return steps, np.zeros_like(steps) if lanes is None else lanes, lead
        picked = np.arange(math.prod(grid)).reshape(grid)[items]
        return (*divmod(picked.reshape(-1), rows.lanes), picked.shape)

    def end_fields(self, keys: Sequence[Any]) -> list[str]:
        """Return those fields of `keys` that there are, flags all of them."""
        leaves = self.rows.layout.leaves
        names = ("/".join((key,) if isinstance(key, str) else key) for key in keys)
        return [name for name in names if name in leaves and leaves[name].dtype == torch.bool]

    def _empty(self) -> None:
        if self._rows is not None:
            self._rows.clear()
        self._bump_mutation_revision()

    def flatten(self) -> Any:
        """Return a stock storage of all elements, copied, as one dimension."""
        if self.ndim == 1:
            return self
        elements = self.get(tuple(slice(None) for _ in range(self.ndim)))
        return TensorStorage(elements.flatten(0, self.ndim - 1))

    def state_dict(self) -> dict[str, Any]:
        """Return all elements, copied, in the form of the stock storages."""
        if self._rows is None:
            return {"_storage": {}, "initialized": False, "_len": 0, "_position": 0}
        elements = self.get(tuple(slice(None) for _ in range(self.ndim)))
        held = elements.state_dict() if isinstance(elements, TensorDictBase) else elements
        return {
            "_storage": held,
            "initialized": True,
            "_len": self._len,
            "_position": self.rows.position,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace all elements by those of a RingStorage or a stock storage."""
        held, length = state_dict["_storage"], state_dict["_len"]
        refill(self, held, length, state_dict.get("_position"))

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigError(
            "the rows of a RingStorage belong to one process: they cannot be pickled or given to "
            "workers; collect in this process, or let the workers' collector return its data"
        )


def _stacked(data: Any) -> Any:
    """Return a list of elements, or a lazy stack, as one."""
    if isinstance(data, list):
        return torch.stack(data)
    if isinstance(data, LazyStackedTensorDict):
        return data.contiguous()
    return data


def _goes_on(steps: Steps, position: int, count: int) -> bool:
    return bool((steps == (position + np.arange(len(steps))) % count).all())


def _as_numpy(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return item.detach().cpu().numpy()
    return np.asarray(item) if isinstance(item, (list, range)) else item


def _is_numbers(item: Any) -> bool:
    if isinstance(item, np.ndarray):
        return item.dtype.kind in "iu"
    return isinstance(item, _INTEGERS) and not isinstance(item, bool)


def _wrapped(item: Any, count: int) -> Steps:
    """Return an index without negative numbers; IndexError beyond `count`."""
    places = np.asarray(item, np.int64)
    if places.size and (places.min() < -count or places.max() >= count):
        wrong = places[(places < -count) | (places >= count)].flat[0]
        raise IndexError(f"index {wrong} is out of bounds for {count} elements")
    return np.where(places < 0, places + count, places)
