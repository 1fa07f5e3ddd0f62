"""ReplayBuffer: a ring of rows as a window over an append-only log of segments.

Rows live once, in shared memory. Nothing is overwritten in place: the newest rows go into an open
segment, full segments are sealed, and the oldest leave the window row by row. With an engine the
sealed segments are persisted as they are, and a snapshot of the rows is a recorded count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyengine._native.ring import BlockFault, NoMemory
from pyengine.config import SLOT_WAIT_SECONDS
from pyengine.errors import (
    ConfigError,
    ImmutableFieldError,
    PyengineError,
    RingInUseError,
    SharedMemoryError,
    UnknownFieldError,
)
from pyengine.events import logger
from pyengine.format.buffer_header import BufferHeader, LaneRecord
from pyengine.format.schema import START_FIELD, FieldLike, Schema
from pyengine.replay.batch import Batch
from pyengine.replay.column import Column
from pyengine.replay.faults import damage_error, no_memory_error
from pyengine.replay.install import SegmentFile, check_header, install
from pyengine.replay.outputs import Outputs
from pyengine.replay.owner import SlotOwner
from pyengine.replay.plan import plan_ring
from pyengine.replay.rows import as_mask, as_rows, check_names, flatten
from pyengine.replay.storage import Storage
from pyengine.shm.headroom import headroom

if TYPE_CHECKING:
    from pyengine._native.control import RingControl

Refs = NDArray[np.int64]
_WAIT_SLICE_SECONDS = 0.001


class ReplayBuffer:
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
        self.schema = schema if isinstance(schema, Schema) else Schema(schema)
        self._plan = plan_ring(self.schema, int(capacity), int(num_envs))
        self.capacity = self._plan.capacity
        self.num_envs = self._plan.num_lanes
        self.slot_wait = slot_wait
        self.wait_count = 0
        self.wait_seconds = 0.0
        self._append_names = tuple(n for n, field in self.schema.items() if not field.mutable)
        self._mutable_names = tuple(self.schema.mutable_fields)
        self._outputs = Outputs(self.schema)
        self._label = "replay"
        self._line = 0
        self._owner: SlotOwner | None = None
        self._storage: Storage | None = None
        self._making = threading.Lock()
        self._seed_state = _pcg64_state(seed)
        self._is_closed = False

    # --- size -------------------------------------------------------------------------------

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
        size = f"{len(self)}/{self.capacity} rows, {self.num_envs} lanes"
        return f"ReplayBuffer({size}, {self.schema!r})"

    # --- append -----------------------------------------------------------------------------

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
        tail, total = self._windows()[lane]
        ids = np.arange(tail, total, dtype=np.int64)
        starts = self.gather_field(ids * self.num_envs + lane, START_FIELD)
        starting: Refs = ids[starts.astype(bool)]
        return starting

    # --- read -------------------------------------------------------------------------------

    def sample(self, batch_size: int, *, out: Any = None, device: Any = None) -> Batch:
        """Draw `batch_size` rows uniformly, with replacement, each valid row of the ring alike.

        `out` takes a Batch or dict of arrays or CPU tensors of shape (batch_size, *shape), filled
        in place (pinned memory too); else fresh arrays. `device` gives torch tensors there. The
        draw is the ring's own PCG64: same seed, same rows, same calls, same batches.

        Raises EmptyRingError; DamageError naming path and offset where a mapped block is bad.
        """
        refs = np.empty(batch_size, np.int64)
        values = self._gather(refs, tuple(self.schema), out, draw=True)
        return self._outputs.batch(values, refs, out, device)

    def gather(self, refs: Any, *, out: Any = None, device: Any = None) -> Batch:
        """Return the rows of `refs` (int64, as in `batch.indices`); UnknownRefError outside."""
        wanted = np.ascontiguousarray(refs, np.int64).reshape(-1)
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
        wanted = np.ascontiguousarray(positions, np.int64).reshape(-1)
        found = np.full(len(wanted), -1, np.int64)
        if self._storage is not None:
            self._storage.core.refs_at(wanted, found)
        return found

    def column(self, name: str) -> Column:
        """Return one field as an array-like of shape (capacity, *shape), indexed by position."""
        return Column(self, name, self._field_exists(name))

    def update(self, refs: Any, **fields: Any) -> int:
        """Overwrite mutable fields at `refs`; return how many refs had left the window (ignored).

        Values have shape (len(refs), *shape) or are one value for all. ImmutableFieldError for an
        append field, UnknownRefError for a ref never handed out; nothing is changed then.
        """
        wanted = np.ascontiguousarray(refs, np.int64).reshape(-1)
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
        return 0 if self._storage is None else self._storage.core.lost_updates

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

    # --- lifetime ---------------------------------------------------------------------------

    def close(self) -> None:
        """Free the memory. Arrays handed out stay valid. Idempotent."""
        self._is_closed = True
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.close()

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _make_storage(self) -> Storage:
        with self._making:
            if self._is_closed:
                raise ConfigError("the ring was closed")
            if self._storage is None:
                storage = Storage(self._plan, label=self._label, line=self._line)
                storage.core.seed_state = self._seed_state
                self._storage = storage
            return self._storage

    def _windows(self) -> list[tuple[int, int]]:
        storage = self._storage
        if storage is None:
            return [(0, 0)] * self.num_envs
        control = storage.control
        # The tail is stored before the count, so that it must be read after it.
        windows = []
        for lane in range(self.num_envs):
            total = control.total_count(lane)
            windows.append((min(control.tail(lane), total), total))
        return windows

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

    # --- the engine's side --------------------------------------------------------------------

    def bind(self, owner: SlotOwner, label: str, *, line: int = 0, strict: bool = False) -> None:
        """Let an engine persist this ring under `label`. RingInUseError for a second engine.

        Compares the whole ring with the shared memory that is left: a warning that names the row at
        which it will end, or SharedMemoryError with `strict`.
        """
        if self._owner is not None and self._owner is not owner:
            raise RingInUseError(
                f"the ring {label!r} is already tracked by another engine; one ring has one engine"
            )
        if self._storage is None:
            self._check_headroom(label, strict)
        self._owner = owner
        self._label = label
        self.set_line(line)

    def unbind(self, owner: SlotOwner) -> None:
        """End the engine's interest; pending snapshots no longer hold the ring."""
        if self._owner is owner:
            self._owner = None
            if self._storage is not None:
                self._storage.core.drop_holds()

    def set_line(self, line: int) -> None:
        """Set the line that new segments are written under."""
        self._line = line
        if self._storage is not None:
            self._storage.control.line = line

    @property
    def storage(self) -> Storage | None:
        """Arena, control block and seal event, once rows exist or a restore made them."""
        return self._storage

    @property
    def control(self) -> RingControl | None:
        """The control block, once there is one."""
        return None if self._storage is None else self._storage.control

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """Hold off appends, updates and gathers of all threads while the cut is taken."""
        storage = self._storage or self._make_storage()
        storage.core.lock()
        try:
            yield
        finally:
            storage.core.unlock()

    def cut(self, words: Any, offset: int, sequence: int) -> tuple[LaneRecord, ...]:
        """Inside `freeze`: record the lanes' windows, and hold their segments for a snapshot.

        The hold lasts while the word at byte `offset` of `words` is (sequence, PENDING or
        COMMITTING).
        """
        storage = self._storage or self._make_storage()
        storage.core.hold(words, offset, sequence)
        return tuple(
            LaneRecord(tail, total, storage.control.break_pending(lane))
            for lane, (tail, total) in enumerate(self._windows())
        )

    def mutable_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the live mutable fields, (capacity, *shape) by position; copy inside `freeze`."""
        return (self._storage or self._make_storage()).mutable_arrays()

    def header_record(self) -> dict[str, Any]:
        """Return what a buffer header says of the ring besides its rows; JSON values."""
        storage = self._storage or self._make_storage()
        state, increment = storage.core.seed_state
        return {
            "schema": self.schema.to_record(),
            "capacity": self.capacity,
            "num_lanes": self.num_envs,
            "segment_rows": self._plan.segment_rows,
            "sampler": {
                "kind": "pcg64",
                "state": f"{state:032x}",
                "increment": f"{increment:032x}",
                "lost_updates": storage.core.lost_updates,
            },
        }

    def check_restorable(self, header: BufferHeader) -> None:
        """Raise StateMismatchError unless the saved ring fits this one."""
        check_header(self._plan, header, self._label)

    def install(
        self,
        header: BufferHeader,
        files: Mapping[str, SegmentFile],
        mutable: Mapping[str, NDArray[Any]],
        *,
        eager: bool = False,
        replay_last: int | None = None,
        keep_breaks: bool = False,
    ) -> int:
        """Replace the ring's contents by a snapshot's; return the number of rows.

        `files` gives each file of the header's extents. Full segments are mapped where they lie;
        only rows of open segments are copied. `eager` verifies every block first. `replay_last`
        keeps at most so many of the newest rows. A break is set at each lane's total_count unless
        `keep_breaks` (the environments were restored too). On error the ring is as it was.
        """
        self.check_restorable(header)
        storage = Storage(self._plan, label=self._label, line=self._line)
        try:
            rows = install(
                storage,
                header,
                files,
                mutable,
                eager=eager,
                replay_last=replay_last,
                keep_breaks=keep_breaks,
            )
        except BaseException:
            storage.close()
            raise
        with self._making:
            former, self._storage = self._storage, storage
        if former is not None:
            former.close()
        return rows

    def _check_headroom(self, label: str, strict: bool) -> None:
        free, needed = headroom(), self._plan.arena_bytes
        if needed <= free:
            return
        row = max(0, free * self.capacity // needed)
        message = (
            f"{label}: the whole ring takes {needed >> 20} MiB of shared memory, {free >> 20} MiB "
            f"are free: memory will end at about row {row} of {self.capacity}"
        )
        if strict:
            raise SharedMemoryError(message, needed_bytes=needed, free_bytes=free)
        logger.warning("%s", message)


def _pcg64_state(seed: int | None) -> tuple[int, int]:
    state = np.random.PCG64(seed).state["state"]
    return int(state["state"]), int(state["inc"])
