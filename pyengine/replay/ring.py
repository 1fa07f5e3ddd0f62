"""ReplayBuffer: a ring of rows as a window over an append-only log of segments.

Rows live once, in shared memory. Nothing is overwritten in place: the newest rows go into an open
segment, full segments are sealed, and the oldest leave the window row by row. With an engine the
sealed segments are persisted as they are, and a snapshot of the rows is a recorded count.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine._native.ring import BlockFault, NoMemory
from pyengine.config import SLOT_WAIT_SECONDS
from pyengine.errors import (
    ConfigError,
    FieldDtypeError,
    FieldShapeError,
    ImmutableFieldError,
    PyengineError,
    SharedMemoryError,
    UnknownFieldError,
)
from pyengine.format.schema import START_FIELD, FieldLike, Schema
from pyengine.replay.batch import Batch
from pyengine.replay.binding import RingBinding
from pyengine.replay.column import Column
from pyengine.replay.faults import damage_error, no_memory_error
from pyengine.replay.outputs import Outputs
from pyengine.replay.rows import as_mask, as_rows, check_names, flatten
from pyengine.replay.storage import Storage

Refs = NDArray[np.int64]
_WAIT_SLICE_SECONDS = 0.001


class ReplayBuffer(RingBinding):
    """A replay buffer of fixed capacity in POSIX shared memory, with or without an engine.

    `schema` says what a row is, `capacity` how many rows are kept over all lanes, `num_envs` how
    many lanes (independent sequences, one per environment) there are; capacity is exact and must be
    a multiple of num_envs. `seed` starts the ring's own PCG64 (None: from the operating system).
    `slot_wait` bounds how long `add` waits for memory that a pending snapshot still needs.

    Memory is reserved at the first append, a segment at a time: SharedMemoryError names the bytes
    needed and free, never SIGBUS. Threads may add, sample and update at once. In a forked child the
    ring is inert. `close()` frees the memory; so does the end of the process, however it comes.
    """

    def __init__(
        self,
        schema: Schema | Mapping[str, FieldLike],
        capacity: int,
        *,
        num_envs: int = 1,
        seed: int | None = None,
        slot_wait: float = SLOT_WAIT_SECONDS,
    ) -> None:
        super().__init__(schema, capacity, num_envs, seed)
        self.slot_wait = slot_wait
        self.wait_count = 0
        self.wait_seconds = 0.0
        self._append_names = tuple(n for n, field in self.schema.items() if not field.mutable)
        self._mutable_names = tuple(self.schema.mutable_fields)
        self._outputs = Outputs(self.schema)

    def __len__(self) -> int:
        return sum(total - tail for tail, total in self._windows())

    @property
    def total_count(self) -> Any:
        """The next row id: an int with one lane, else int64 of shape (lanes,)."""
        return self._per_lane([total for _, total in self._windows()])

    @property
    def tail(self) -> Any:
        """The oldest valid row id, per lane like `total_count`."""
        return self._per_lane([tail for tail, _ in self._windows()])

    @property
    def head(self) -> Any:
        """Where in the lane the next row goes: total_count modulo rows per lane."""
        rows = self._plan.rows_per_lane
        return self._per_lane([total % rows for _, total in self._windows()])

    def __repr__(self) -> str:
        held = "closed" if self._is_closed or self._is_forked else str(len(self))
        size = f"{held}/{self.capacity} rows, {self.num_envs} lanes"
        return f"ReplayBuffer({size}, {self.schema!r})"

    def add(
        self, rows: Mapping[str, Any] | None = None, /, *, mask: Any = None, **fields: Any
    ) -> None:
        """Append one row to each lane, or to the lanes where `mask` (bool, (lanes,)) is true.

        Each field has shape (lanes, *shape); with one lane the lane axis may be left out. Nested
        dicts and flat names both work. Visible, whole, to samplers and snapshots on return.

        Raises RowError (see pyengine.errors) naming field, expected and got, with the ring
        unchanged; SharedMemoryError where memory ends. Blocks only while every slot is held by a
        pending snapshot, up to `slot_wait` seconds, after which that snapshot is cancelled.
        """
        if rows is not None:
            fields = {**rows, **fields}
        storage = self._storage or self._make_storage()
        done = self._try_exact(storage, fields, mask)
        if done == 0:
            self._append(fields, mask, steps=None, lane=None)
        elif done < 0:
            self._wait_for_slot(lambda: self._try_exact(storage, fields, mask) == 1)
        if storage.mapped:
            storage.drop_retired()

    def extend(
        self,
        rows: Mapping[str, Any] | None = None,
        /,
        *,
        lane: int | None = None,
        mask: Any = None,
        **fields: Any,
    ) -> None:
        """Append T rows to each lane, oldest first, or to one `lane`.

        Each field has shape (T, lanes, *shape), or (T, *shape) with one lane or `lane=`; `mask` is
        bool of shape (T, lanes). Errors and blocking as for `add`. An interrupt between segments
        leaves the rows before it, whole.
        """
        if rows is not None:
            fields = {**rows, **fields}
        if lane is not None and not 0 <= lane < self.num_envs:
            raise ConfigError(f"lane={lane} is not one of the ring's {self.num_envs} lanes")
        storage = self._storage or self._make_storage()
        flat = flatten(fields)
        check_names(self.schema, flat)
        first = flat[self._append_names[0]]
        if np.ndim(first) == 0:
            name = self._append_names[0]
            raise FieldShapeError(
                f"field {name!r}: expected a leading axis of steps, got a scalar",
                field=name,
                expected=("steps", *self.schema[name].shape),
                got=(),
            )
        steps = len(first)
        self._append(flat, mask, steps=steps, lane=lane)
        if storage.mapped:
            storage.drop_retired()

    def _try_exact(self, storage: Storage, fields: dict[str, Any], mask: Any) -> int:
        try:
            return storage.core.add_exact(fields, mask)
        except NoMemory as fault:
            raise no_memory_error(self._label, storage, fault) from None

    def _append(
        self, rows: Mapping[str, Any], mask: Any, *, steps: int | None, lane: int | None
    ) -> None:
        flat = flatten(rows)
        check_names(self.schema, flat)
        lanes = 1 if lane is not None else self.num_envs
        lead = (lanes,) if steps is None else (steps, lanes)
        values = [
            as_rows(name, self.schema[name], flat[name], lead) if name in flat else None
            for name in (*self._append_names, *self._mutable_names)
        ]
        allowed = None if mask is None else as_mask(mask, lead)
        storage = self._storage or self._make_storage()
        count = 1 if steps is None else steps
        begin = lane or 0
        done = 0

        def go_on() -> bool:
            nonlocal done
            try:
                done = storage.core.append(values, begin, lanes, count, done, allowed)
            except NoMemory as fault:
                raise no_memory_error(self._label, storage, fault) from None
            return done == count

        if not go_on():
            self._wait_for_slot(go_on)

    def _wait_for_slot(self, go_on: Any) -> None:
        """Call `go_on` until it says true: in slices, looking after the writer, up to the bound."""
        began = time.monotonic()
        bound = began + self.slot_wait
        self.wait_count += 1
        try:
            while not go_on():
                if self._owner is None:
                    raise PyengineError("no free segment slot, although no engine holds one")
                self._owner.poll()
                time.sleep(_WAIT_SLICE_SECONDS)
                if time.monotonic() > bound:
                    cancelled = self._owner.cancel_holding(
                        f"{self._label}: no segment slot became free within {self.slot_wait:g} s"
                    )
                    bound = time.monotonic() + self.slot_wait
                    if not cancelled and not go_on():
                        raise SharedMemoryError(
                            f"{self._label}: every segment slot is in use and no pending snapshot "
                            "can be cancelled",
                            needed_bytes=self._plan.layout.file_bytes,
                            free_bytes=0,
                        )
                    if not cancelled:
                        return
        finally:
            self.wait_seconds += time.monotonic() - began

    def break_episode(self, lane: int | None = None) -> None:
        """Say that the next row of `lane` (default: every lane) does not continue the last one."""
        storage = self._storage or self._make_storage()
        for index in range(self.num_envs) if lane is None else (lane,):
            if not 0 <= index < self.num_envs:
                raise ConfigError(f"lane={lane} is not one of the ring's {self.num_envs} lanes")
            storage.core.break_lane(index)

    def breaks(self, lane: int = 0) -> Refs:
        """Return the ids of the lane's valid rows that start a sequence, in order (int64)."""
        if not 0 <= lane < self.num_envs:
            raise ConfigError(f"lane={lane} is not one of the ring's {self.num_envs} lanes")
        tail, total = self._windows()[lane]
        ids = np.arange(tail, total, dtype=np.int64)
        starts = self.gather_field(ids * self.num_envs + lane, START_FIELD)
        starting: Refs = ids[starts.astype(bool)]
        return starting

    def sample(self, batch_size: int, *, out: Any = None, device: Any = None) -> Batch:
        """Draw `batch_size` rows uniformly, with replacement, each valid row of the ring alike.

        `out` takes a Batch or dict of arrays or CPU tensors of shape (batch_size, *shape), filled
        in place (pinned memory too); else fresh arrays. `device` gives torch tensors there. The
        draw is the ring's own PCG64: same seed, same rows, same calls, same batches.

        Raises EmptyRingError; DamageError naming path and offset where a mapped block is bad.
        """
        if batch_size < 0:
            raise ConfigError(f"batch_size={batch_size} is negative")
        refs = np.empty(batch_size, np.int64)
        values = self._gather(refs, tuple(self.schema), out, draw=True)
        return self._outputs.batch(values, refs, out, device)

    def gather(self, refs: Any, *, out: Any = None, device: Any = None) -> Batch:
        """Return the rows of `refs` (int64, as in `batch.indices`); UnknownRefError outside."""
        wanted = _as_integers("refs", refs)
        values = self._gather(wanted, tuple(self.schema), out)
        return self._outputs.batch(values, wanted, out, device)

    def gather_at(self, positions: Any, *, out: Any = None, device: Any = None) -> Batch:
        """Return the rows at `positions` (lane * rows per lane + row id modulo rows per lane)."""
        return self.gather(self.refs_at(positions), out=out, device=device)

    def __getitem__(self, refs: Any) -> Batch:
        return self.gather(refs)

    def refs(self) -> Refs:
        """Return the refs of all valid rows, oldest row id first."""
        lanes = self.num_envs
        parts = [
            np.arange(tail, total, dtype=np.int64) * lanes + lane
            for lane, (tail, total) in enumerate(self._windows())
        ]
        return np.sort(np.concatenate(parts))

    def refs_at(self, positions: Any) -> Refs:
        """Return the refs at `positions`, -1 where no valid row is."""
        wanted = _as_integers("positions", positions)
        found = np.full(len(wanted), -1, np.int64)
        storage = self._usable_storage()
        if storage is not None:
            storage.core.refs_at(wanted, found)
        return found

    def column(self, name: str) -> Column:
        """Return one field as an array-like of shape (capacity, *shape), indexed by position."""
        return Column(self, name, self._field_exists(name))

    def update(self, refs: Any, **fields: Any) -> int:
        """Overwrite mutable fields at `refs`; return how many refs had left the window (ignored).

        Values have shape (len(refs), *shape) or are one value for all. ImmutableFieldError for an
        append field, UnknownRefError for a ref never handed out; nothing is changed then.
        """
        wanted = _as_integers("refs", refs)
        prepared = []
        for name, value in flatten(fields).items():
            field = self._field_exists(name)
            if not field.mutable:
                raise ImmutableFieldError(
                    f"field {name!r} is an append field and never changes once added; declare it "
                    "Field(..., mutable=True) to update it",
                    field=name,
                    expected="a mutable field",
                    got="an append field",
                )
            constant = np.shape(value) == field.shape and np.shape(value) != (
                len(wanted),
                *field.shape,
            )
            rows = as_rows(name, field, value, () if constant else (len(wanted),))
            prepared.append((self._mutable_names.index(name), rows, constant))
        storage = self._storage or self._make_storage()
        lost = 0
        for index, rows, constant in prepared:
            lost = max(lost, storage.core.update(index, wanted, rows, constant))
        return lost

    @property
    def lost_updates(self) -> int:
        """How many updates came after their row had left the window."""
        storage = self._usable_storage()
        return 0 if storage is None else storage.core.lost_updates

    def gather_field(self, refs: Refs, name: str) -> NDArray[Any]:
        """Return one field of the rows of `refs`, shape (len(refs), *shape)."""
        return self._gather(refs, (name,), None)[name]

    def _gather(
        self, refs: Refs, names: tuple[str, ...], out: Any, *, draw: bool = False
    ) -> dict[str, NDArray[Any]]:
        storage = self._storage or self._make_storage()
        values, ordered = self._outputs.prepare(len(refs), names, out)
        try:
            storage.core.gather(refs, ordered, draw)
        except BlockFault as fault:
            raise damage_error(storage, fault) from None
        return values

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _per_lane(self, values: list[int]) -> Any:
        return values[0] if self.num_envs == 1 else np.asarray(values, np.int64)

    def _field_exists(self, name: str) -> Any:
        if name not in self.schema:
            raise UnknownFieldError(
                f"the schema has no field {name!r}; it has {', '.join(self.schema)}",
                field=name,
                expected=tuple(self.schema),
                got=name,
            )
        return self.schema[name]


def _as_integers(what: str, values: Any) -> Refs:
    """Return flat int64 values; FieldDtypeError for floats and flags, which would be rounded."""
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise FieldDtypeError(
            f"{what}: expected integers, got {array.dtype}",
            field=what,
            expected="int64",
            got=str(array.dtype),
        )
    return np.ascontiguousarray(array, np.int64).reshape(-1)
