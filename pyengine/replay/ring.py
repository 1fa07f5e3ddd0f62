"""ReplayBuffer: a ring of rows as a window over an append-only log of segments.

Rows live once, in shared memory. Nothing is overwritten in place: the newest rows go into an open
segment, full segments are sealed, and the oldest leave the window row by row. With an engine the
sealed segments are persisted as they are, and a snapshot of the rows is a recorded count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from pyengine._native.ring import BrokenStack, NoMemory
from pyengine.config import SLOT_WAIT_SECONDS
from pyengine.errors import (
    FieldShapeError,
    ImmutableFieldError,
    MissingFieldError,
    SharedMemoryError,
)
from pyengine.format.counts import as_seconds
from pyengine.format.schema import FieldLike, Schema
from pyengine.replay.column import Column
from pyengine.replay.faults import (
    broken_stack_error,
    limit_error,
    no_memory_error,
    no_slot_error,
)
from pyengine.replay.places import find_places
from pyengine.replay.reading import Array, no_row_yet
from pyengine.replay.rows import as_mask, as_refs, as_rows, check_names, flatten, merge, to_array
from pyengine.replay.sequences import RingSequences
from pyengine.replay.storage import Storage
from pyengine.replay.waiting import wait_for_slot


class ReplayBuffer(RingSequences):
    """A replay buffer of fixed capacity in POSIX shared memory, with or without an engine.

    `schema` says what a row is, `capacity` how many rows are kept over all lanes, `num_envs` how
    many lanes (independent sequences, one per environment) there are; capacity is exact and must be
    a multiple of num_envs. `seed` (an int) starts the ring's own PCG64 (None: from the operating
    system). `slot_wait` bounds how long `add` waits for memory that a pending snapshot still needs.

    Memory is reserved at the first append, a segment at a time: SharedMemoryError names the bytes
    needed and free, never SIGBUS. Where an engine tracks the ring, on a local file system, the
    oldest rows live in their segment files instead once memory ends, or `memory_limit` bytes of it:
    they are sampled, saved and restored as before, verified when first touched, at the disk's
    speed. The limit is for rows, in whole segments. On top come the tables (1/700 of the rows of
    the full ring or less, unless it is very small), mutable fields, and while a restore exchanges
    the rows what they took before. Threads may add, sample, update, restore and close at once. In a
    forked child the ring is inert. `close()` frees the memory; so does the end of the process,
    however it comes.

    Raises SchemaError, ConfigError naming the argument, expected and got: for a limit below what
    open segments and spares of all lanes need, too.
    """

    def __init__(
        self,
        schema: Schema | Mapping[str, FieldLike],
        capacity: int,
        *,
        num_envs: int = 1,
        seed: int | None = None,
        slot_wait: float = SLOT_WAIT_SECONDS,
        memory_limit: int | None = None,
    ) -> None:
        super().__init__(schema, capacity, num_envs, seed, memory_limit)
        self.slot_wait = as_seconds("slot_wait", slot_wait)
        self.wait_count = 0
        self.wait_seconds = 0.0
        self._append_names = tuple(n for n, field in self.schema.items() if not field.mutable)
        self._mutable_names = tuple(self.schema.mutable_fields)

    def __repr__(self) -> str:
        held = "closed" if self._is_closed or self._is_forked else str(len(self))
        size = f"{held}/{self.capacity} rows, {self.num_envs} lanes"
        return f"ReplayBuffer({size}, {self.schema!r})"

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def add(
        self, rows: Mapping[str, Any] | None = None, /, *, mask: Any = None, **fields: Any
    ) -> None:
        """Append one row to each lane, or to the lanes where `mask` (bool, (lanes,)) is true.

        Each field has shape (lanes, *shape); with one lane the lane axis may be left out. Nested
        dicts and flat names both work. Visible, whole, to samplers and snapshots on return.

        Raises RowError (see pyengine.errors) naming field, expected and got, with the ring
        unchanged; SharedMemoryError where memory ends. Blocks only while every slot is held by a
        pending snapshot, up to `slot_wait` seconds, after which that snapshot is cancelled; one
        that is just being committed is waited for a minute more. Where memory has ended, or its
        limit, a slot is free as soon as the disk has its segment: up to a minute for each, after
        `slot_wait`.
        """
        self._add(merge(rows, fields), mask)

    def _add(self, fields: dict[str, Any], mask: Any) -> None:
        left = self._append_exact(fields, mask, False, None)
        if left:
            self._append(flatten(fields), mask, steps=None, lane=None, left=left)

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
        bool of shape (T, lanes). Errors and blocking as for `add`. An interrupt leaves all of the
        steps or none; one that ends a wait for memory leaves those added before the wait, whole.
        """
        fields = merge(rows, fields)
        lane = None if lane is None else self._lane(lane)
        left = self._append_exact(fields, mask, True, lane)
        if left:
            self._extend(flatten(fields), mask, lane, left)

    def _extend(self, flat: dict[str, Any], mask: Any, lane: int | None, left: int) -> None:
        self._check_usable()
        check_names(self.schema, flat)
        name = self._append_names[0]
        first = to_array(name, flat[name]) if isinstance(flat[name], list | tuple) else flat[name]
        if np.ndim(first) == 0:
            raise FieldShapeError(
                f"field {name!r}: expected a leading axis of steps, got a scalar",
                field=name,
                expected=("steps", *self.schema[name].shape),
                got=(),
            )
        self._append(flat, mask, steps=len(first), lane=lane, left=left)

    def _append_exact(
        self, fields: dict[str, Any], mask: Any, has_steps: bool, lane: int | None, /
    ) -> int:
        """Append what is exactly as the native core takes it; return how many steps are left.

        -1: nothing was done, and it takes a closer look. Every row goes through here: on a row of
        vectors a keyword costs as much as its copy.
        """
        storage = self._storage
        if storage is None:
            return -1
        try:
            left = storage.core.append_exact(fields, mask, has_steps, -1 if lane is None else lane)
        except BrokenStack as fault:
            raise broken_stack_error(self.schema, fault) from None
        if storage.mapped:
            storage.drop_retired()
        return left

    def _append(
        self, flat: dict[str, Any], mask: Any, *, steps: int | None, lane: int | None, left: int
    ) -> None:
        """Append the last `left` steps; -1: all of them."""
        check_names(self.schema, flat)
        lanes = 1 if lane is not None else self.num_envs
        lead = (lanes,) if steps is None else (steps, lanes)
        values = [
            as_rows(name, self.schema[name], flat[name], lead) if name in flat else None
            for name in (*self._append_names, *self._mutable_names)
        ]
        allowed = None if mask is None else as_mask(mask, lead)
        count = 1 if steps is None else steps
        done = 0 if left < 0 else count - left
        refusal: SharedMemoryError | None = None

        def append(storage: Storage) -> int:
            nonlocal done, refusal
            while done < count:
                before, refusal = done, None
                try:
                    done = storage.core.append(values, lane or 0, lanes, count, done, allowed)
                    if done == before and storage.core.asks_for_memory:
                        storage.allow_memory(self._label)
                        continue
                except NoMemory as fault:
                    refusal = no_memory_error(self._label, storage, fault)
                except SharedMemoryError as error:
                    refusal = error
                except BrokenStack as fault:
                    raise broken_stack_error(self.schema, fault) from None
                # What stops it is told by a call that gets no further.
                if done == before and not self._spill(storage, refusal):
                    break
            return done

        def go_on() -> bool:
            return self._use(append) == count

        def give_up(cause: str) -> Exception:
            return self._use(lambda storage: no_slot_error(self._label, storage, cause, refusal))

        if not go_on():
            self._wait_for_slot(go_on, give_up)
        self._drop_retired()

    def _spill(self, storage: Storage, refusal: SharedMemoryError | None) -> bool:
        """Free slots where memory, or the ring's limit of it, has none left; whether one was freed.

        `refusal` is why no slot got memory. Raises where none can become free: waiting is in vain.
        """
        is_limited = storage.plan.memory_limit is not None
        if refusal is None and not is_limited:
            return False  # pending snapshots hold slots: they, not rows of the window, are to go
        if storage.spill():
            return True
        if refusal is not None and not storage.spiller.unwritten():
            raise refusal
        if is_limited and not storage.spiller.is_possible:
            raise limit_error(self._label, storage, self._owner is not None)
        return False

    def _wait_for_slot(
        self, go_on: Callable[[], bool], give_up: Callable[[str], Exception]
    ) -> None:
        began = time.monotonic()
        self.wait_count += 1
        try:
            wait_for_slot(
                go_on,
                lambda: self._owner,
                lambda: self._look(lambda storage: storage.spiller.unwritten()) or 0,
                label=self._label,
                bound_seconds=self.slot_wait,
                give_up=give_up,
            )
        finally:
            self.wait_seconds += time.monotonic() - began

    def _drop_retired(self) -> None:
        storage = self._storage
        if storage is not None and storage.mapped:
            storage.drop_retired()

    def break_episode(self, lane: int | None = None) -> None:
        """Say that the next row of `lane` (default: every lane) does not continue the last one.

        All lanes at once. Takes no memory: a lane without rows begins with a break as it is.
        ConfigError for a lane that is not there.
        """
        begin, count = (0, self.num_envs) if lane is None else (self._lane(lane), 1)
        self._look(
            lambda storage: storage.core.break_lanes(begin, count)
        )  # without storage yet, every lane begins with a break as it is

    def column(self, name: str) -> Column:
        """Return one field as an array-like of shape (capacity, *shape), indexed by position.

        UnknownFieldError for a name that the schema does not have. Takes no memory.
        """
        return Column(self, name, self._field_exists(name))

    def update(self, refs: Any, **fields: Any) -> int:
        """Overwrite mutable fields at `refs`; return how many refs had left the window (ignored).

        Values have shape (len(refs), *shape) or are one value for all; all fields of a row change
        at once. A ref that had left counts once, however many fields were given. Waits for adds and
        the cut of a snapshot, which has all of the values or none.

        Raises RowError (see pyengine.errors) naming field, expected and got, with the ring
        unchanged: ImmutableFieldError for an append field, UnknownRefError for a ref never handed
        out, MissingFieldError where no field is given.
        """
        flat = flatten(fields)
        if not flat:
            raise MissingFieldError(
                "update: no field was given",
                field="fields",
                expected=self._mutable_names,
                got=(),
            )
        wanted = as_refs("refs", refs)
        values: list[Array | None] = [None] * len(self._mutable_names)
        for name, value in flat.items():
            field = self._field_exists(name)
            if not field.mutable:
                raise ImmutableFieldError(
                    f"field {name!r} is an append field and never changes once added; declare it "
                    "Field(..., mutable=True) to update it",
                    field=name,
                    expected="a mutable field",
                    got="an append field",
                )
            shape = np.shape(value if hasattr(value, "shape") else to_array(name, value))
            lead = () if shape == field.shape != (len(wanted), *field.shape) else (len(wanted),)
            values[self._mutable_names.index(name)] = as_rows(name, field, value, lead)
        lost = self._look(lambda storage: storage.core.update(wanted, values))
        if lost is None and len(wanted):
            raise no_row_yet(int(wanted[0]))
        return lost or 0

    def assign(self, name: str, index: Any, value: Array) -> None:
        """Assign to a mutable field as to an array (capacity, *shape) by position; for Column."""

        field, number = self.schema[name], self._mutable_names.index(name)
        places = find_places(index, self.capacity, field.shape)
        try:
            values = places.spread(value)
        except ValueError as error:
            raise FieldShapeError(
                f"field {name!r}: {error}",
                field=name,
                expected="a value of the shape that the index has",
                got=value.shape,
            ) from None
        item_bytes = prod(places.item_shape) * values.itemsize
        self._use(
            lambda storage: storage.core.assign(
                number,
                item_bytes,
                places.first,
                places.step,
                places.count,
                places.numbers,
                values,
            )
        )
