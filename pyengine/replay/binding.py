"""The engine's side of a ring: bind, cut, header, prepare and exchange."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from pyengine._native.ring import exchange
from pyengine.errors import ClosedError, ConfigError, RingInUseError
from pyengine.format.buffer_header import BufferHeader, DroppedRun, Extent, LaneRecord
from pyengine.replay.damage import OnDamage
from pyengine.replay.demand import add_demand, check_demand, drop_demand
from pyengine.replay.holding import RingHolding
from pyengine.replay.install import PreparedRing, check_header, install
from pyengine.replay.owner import SlotOwner
from pyengine.replay.plan import default_value
from pyengine.replay.segment_files import SegmentFile
from pyengine.replay.storage import Storage
from pyengine.replay.warmed_pages import follow_warming


class RingBinding(RingHolding):
    """Base of ReplayBuffer that an engine talks to."""

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
