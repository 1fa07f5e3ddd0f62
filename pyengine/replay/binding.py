"""The memory of a ring and the engine's side of it: bind, cut, header, prepare and exchange.

Everything a ring is besides rows going in and out. Storage is made at the first append or by a
restore; a closed or forked ring has none, so that the append and sample paths need no check. A
restore puts other storage in its place, under the lock of the former: a call that comes too late
for that one finds it closed, and begins anew with the other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyengine._native.ring import exchange
from pyengine.errors import ClosedError, ConfigError, ForkedProcessError, RingInUseError
from pyengine.format.buffer_header import BufferHeader, DroppedRun, Extent, LaneRecord
from pyengine.format.counts import as_count
from pyengine.format.schema import FieldLike, Schema
from pyengine.fs.forking import register_for_child
from pyengine.replay.damage import OnDamage
from pyengine.replay.demand import add_demand, check_demand, drop_demand
from pyengine.replay.install import PreparedRing, check_header, install
from pyengine.replay.owner import SlotOwner
from pyengine.replay.plan import default_value, plan_ring
from pyengine.replay.segment_files import SegmentFile, read_ahead
from pyengine.replay.storage import Storage
from pyengine.replay.warmed_pages import follow_warming

if TYPE_CHECKING:
    from pyengine._native.control import RingControl


T = TypeVar("T")


class RingBinding:
    """Base of ReplayBuffer: owns the storage, and is what an engine talks to."""

    def __init__(
        self,
        schema: Schema | Mapping[str, FieldLike],
        capacity: int,
        num_lanes: int,
        seed: int | None,
        memory_limit: int | None,
    ) -> None:
        self.schema = schema if isinstance(schema, Schema) else Schema(schema)
        self._schema_record = self.schema.to_record()
        self._plan = plan_ring(self.schema, capacity, num_lanes, memory_limit)
        self.capacity = self._plan.capacity
        self.num_envs = self._plan.num_lanes
        self._label = "replay"
        self._line = 0
        self._owner: SlotOwner | None = None
        self._pool: str | None = None
        self._on_damage: OnDamage = "raise"
        self._storage: Storage | None = None
        # Entered again by a signal handler that needs the storage its own thread is just making.
        self._making = threading.RLock()
        self._seed_state = _pcg64_state(seed)
        self._is_closed = False
        self._is_forked = False
        self._parents_storage: Storage | None = None
        register_for_child(self)

    def close(self) -> None:
        """Free the memory. Idempotent; later calls raise ClosedError. Batches stay valid.

        Waits for calls of other threads that are at work in it. RuntimeError inside `freeze`.
        """
        self._is_closed = True
        while (storage := self._storage) is not None:
            try:
                storage.close()
            except RuntimeError:
                self._is_closed = False
                raise
            self._put(storage, None)

    def _after_fork_in_child(self) -> None:
        # Kept, not closed: its memory is not mapped here.
        self._parents_storage, self._storage = self._storage, None
        self._is_forked = True
        self._owner = None
        self._making = threading.RLock()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise ClosedError("the ring was closed")
        if self._is_forked:
            raise ForkedProcessError(
                "the ring belongs to the process that made it; a forked child has to send its rows "
                "there"
            )

    def _usable_storage(self) -> Storage | None:
        """Return the storage, None before there is one; ClosedError, ForkedProcessError."""
        storage = self._storage
        if storage is None:
            self._check_usable()
        return storage

    def _make_storage(self) -> Storage:
        with self._making:
            self._check_usable()
            if self._storage is None:
                if self._owner is None:  # else told when the engine got it
                    check_demand(self, self._label, strict=False)
                storage = self._new_storage(self._line)
                storage.start_reserving()
                if not self._put(None, storage):
                    storage.close()  # a restore or a signal handler was faster
                if self._is_closed:  # by another thread, which saw no storage
                    self.close()
                    self._check_usable()
            return self._storage or self._make_storage()

    def _put(self, former: Storage | None, storage: Storage | None) -> bool:
        """Put storage in the place of `former`, in one step; whether that was what there was."""
        return exchange(self, "_storage", None, former, storage)

    def _new_storage(self, line: int) -> Storage:
        storage = Storage(self._plan, label=self._label, line=line)
        storage.core.seed_state = self._seed_state
        storage.spiller.pool = self._pool
        storage.on_damage = self._on_damage
        return storage

    def _use(self, call: Callable[[Storage], T]) -> T:
        """Call with the storage, made if need be; anew where a restore put another in its place."""
        while True:
            storage = self._storage or self._make_storage()
            try:
                return call(storage)
            except ClosedError:
                if storage is self._storage:
                    raise

    def _look(self, call: Callable[[Storage], T]) -> T | None:
        """The same, but None where there is no storage yet."""
        while True:
            storage = self._usable_storage()
            if storage is None:
                return None
            try:
                return call(storage)
            except ClosedError:
                if storage is self._storage:
                    raise

    def _windows(self) -> list[tuple[int, int]]:
        return self._look(Storage.windows) or [(0, 0)] * self.num_envs

    def bind(
        self,
        owner: SlotOwner,
        label: str,
        *,
        line: int = 0,
        strict: bool = False,
        pool: str | None = None,
        on_damage: OnDamage = "raise",
    ) -> None:
        """Let an engine persist this ring under `label`. RingInUseError for a second engine.

        `pool` is the directory that its segment files get into, where they can be mapped: segments
        may live there then, and what of them is damaged is dealt with by `on_damage`. ConfigError
        for a ring with a memory limit without one.

        Compares what all tracked rings of this process have still to take with the shared memory
        that is left: a warning that names the row at which it will end, or SharedMemoryError with
        `strict`.
        """
        self._check_usable()
        if self._plan.memory_limit is not None and pool is None:
            raise ConfigError(
                f"{label}: memory_limit needs segment files that can be mapped, and the run is on "
                "a network or FUSE file system, where maps may go stale; put the run on a local "
                "disk, or leave memory_limit out",
                field="memory_limit",
                expected="a run directory on a local file system",
                got=self._plan.memory_limit,
            )
        if self._owner is not None and self._owner is not owner:
            raise RingInUseError(
                f"the ring {label!r} is already tracked by another engine; one ring has one engine"
            )
        if self._owner is None:
            # First, so that of two rings bound at once each counts the other.
            add_demand(self)
            try:
                check_demand(self, label, strict=strict, has_files=pool is not None)
            except BaseException:
                drop_demand(self)
                raise
        self._owner = owner
        self._label = label
        self._on_damage = on_damage
        self._set_pool(pool)
        self.set_line(line)

    def unbind(self, owner: SlotOwner) -> None:
        """End the engine's interest; pending snapshots no longer hold the ring."""
        if self._owner is owner:
            self._owner = None
            self._set_pool(None)
            drop_demand(self)
            if self._storage is not None:
                self._storage.core.drop_holds()

    def _set_pool(self, pool: str | None) -> None:
        self._pool = pool
        if self._storage is not None:
            self._storage.spiller.pool = pool
            self._storage.on_damage = self._on_damage

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
        """Hold off appends, updates, gathers and restores of all threads while the cut is taken.

        Not where a signal handler may run: it would meet the lock that its own thread holds.
        """
        with contextlib.ExitStack() as lock:
            self._use(lambda storage: self._lock_current(storage, lock))
            yield

    def _lock_current(self, storage: Storage, lock: contextlib.ExitStack) -> None:
        """Lock a storage that no restore can replace any more; ClosedError where one did."""
        with contextlib.ExitStack() as taken:
            taken.enter_context(storage.core.locked())
            if storage is not self._storage:
                raise ClosedError("a restore put other storage in its place")
            lock.push(taken.pop_all())

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

    @property
    def dropped(self) -> tuple[DroppedRun, ...]:
        """Rows of the window that were given up because their block of a segment file is damaged:
        runs of (lane, first row id, row count), by lane and row; see `on_damage` of the engine.

        They leave the list when they age out. Inside `freeze` too.
        """
        runs = self._look(lambda storage: storage.core.dropped()) or ()
        return tuple(DroppedRun(*run) for run in runs)

    @property
    def may_drop(self) -> bool:
        """Whether rows were dropped, or may be as long as files are mapped, or can be."""
        storage = self._storage
        if storage is None:
            return False
        is_open = storage.on_damage == "drop" and bool(storage.mapped or storage.spiller.pool)
        return is_open or storage.core.dropped_rows > 0

    def mutable_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the live mutable fields, (capacity, *shape) by position; copy inside `freeze`."""
        return (self._storage or self._make_storage()).mutable_arrays()

    def header_record(self) -> dict[str, Any]:
        """Return what a buffer header says of the ring besides its rows; JSON values."""
        storage = self._storage or self._make_storage()
        state, increment = storage.core.seed_state
        return {
            "schema": self._schema_record,
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

    def unsaved_values(self, header: BufferHeader) -> dict[str, Any]:
        """Return what mutable fields get, by name, in rows whose values were not saved."""
        return {
            name: 0 if field.default is None else default_value(field)
            for name, field in self.schema.mutable_fields.items()
        }

    def compare_settings(self, header: BufferHeader) -> list[str]:
        """Return a line for each setting that the saved ring had otherwise."""
        return []

    def prepare(
        self,
        header: BufferHeader,
        files: Mapping[str, SegmentFile],
        mutable: Mapping[str, NDArray[Any]],
        *,
        line: int | None = None,
        eager: bool = False,
        replay_last: int | None = None,
        keep_breaks: bool = False,
        on_damage: OnDamage = "raise",
        replaced: Sequence[Extent] = (),
    ) -> PreparedRing:
        """Put a snapshot's contents into storage that `exchange` can give to this ring.

        `files` gives each file of the header's extents. Full segments are mapped where they lie;
        only rows of open segments are copied. `eager` verifies every block first. Rows of a damaged
        block, now and as long as the storage is used, are an error, or leave the ring
        (`on_damage="drop"`). `replaced` are extents whose rows come from other files, but are lost
        where these are damaged. `replay_last`
        keeps at most so many of the newest rows. A break is set at each lane's total_count unless
        `keep_breaks` (the environments were restored too). New segments are written under `line`
        (None: the ring's own). Raises StateMismatchError, DamageError, SharedMemoryError, OSError;
        the ring is as it was, then and afterwards.
        """
        self._check_usable()
        self.check_restorable(header)
        storage = self._new_storage(self._line if line is None else line)
        storage.on_damage = on_damage
        try:
            rows = install(
                storage,
                header,
                files,
                mutable,
                eager=eager,
                replay_last=replay_last,
                keep_breaks=keep_breaks,
                replaced=replaced,
            )
            storage.start_reserving()
            if not eager:
                follow_warming(storage)
        except BaseException:
            storage.close()
            raise
        return PreparedRing(storage, header, rows)

    def read_ahead(self, paths: Iterable[str]) -> None:
        """Ask for what `prepare` will look at in files at `paths`; a hint that never fails."""
        read_ahead(paths, self._plan.layout)

    def prepare_empty(self, *, line: int) -> PreparedRing:
        """Make storage without rows that `exchange` can give to this ring."""
        self._check_usable()
        storage = self._new_storage(line)
        try:
            storage.start_reserving()
        except BaseException:
            storage.close()
            raise
        return PreparedRing(storage, None, 0)

    def exchange(self, prepared: PreparedRing) -> None:
        """Put prepared storage, and its line, in the place of what there is.

        RuntimeError inside `freeze`, ClosedError where the ring was closed; nothing has changed.
        """
        line = prepared.storage.control.line
        try:
            self._exchange(prepared.storage)
        finally:
            prepared.is_taken = prepared.storage is self._storage
        self._line = line

    def install(
        self,
        header: BufferHeader,
        files: Mapping[str, SegmentFile],
        mutable: Mapping[str, NDArray[Any]],
        **options: Any,
    ) -> int:
        """Replace the ring's contents by a snapshot's; return the number of rows.

        Takes what `prepare` takes. On error the ring is as it was.
        """
        with self.prepare(header, files, mutable, **options) as prepared:
            self.exchange(prepared)
            prepared.install_sampler()
            return prepared.rows

    def _exchange(self, storage: Storage) -> None:
        """Put fresh storage in the place of what there is, under the lock of that."""
        former, is_put = self._storage, False
        while not is_put:
            former = self._storage
            core = None if former is None else former.core
            try:
                # Who froze the ring goes on with what he froze.
                is_put = exchange(self, "_storage", core, former, storage)
            except ClosedError:
                if former is self._storage:
                    raise
        if self._is_closed:  # by another thread, which did not see it
            self.close()
            self._check_usable()
        if former is not None:
            former.close()

    @property
    def whole_bytes(self) -> int:
        """Bytes of shared memory that the ring takes when it is full, or at its limit."""
        return self._plan.arena_bytes

    @property
    def rows_in_memory(self) -> int:
        """How many rows that memory holds at once."""
        return self._plan.rows_in_memory

    def untaken_bytes(self) -> int:
        """Return how many of them it has not taken yet; 0 for a closed or forked ring."""
        if self._is_closed or self._is_forked:
            return 0
        storage = self._storage
        try:
            taken = 0 if storage is None else storage.arena.taken_bytes
        except ClosedError:  # meanwhile
            return 0
        return max(0, self.whole_bytes - taken)


def _pcg64_state(seed: int | None) -> tuple[int, int]:
    if seed is not None:
        seed = as_count("seed", seed, most=None)
    state = np.random.PCG64(seed).state["state"]
    return int(state["state"]), int(state["inc"])
