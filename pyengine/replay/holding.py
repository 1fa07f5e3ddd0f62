"""A ring's hold on its storage: made when it is needed, exchanged by a restore, freed.

Storage is made at the first append or by a restore; a closed or forked ring has none, so that the
append and sample paths need no check. A restore puts other storage in its place, under the lock of
the former: a call that comes too late for that one finds it closed, and begins anew with the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from pyengine._native.ring import exchange
from pyengine.errors import ClosedError, ForkedProcessError
from pyengine.format.counts import as_count
from pyengine.format.schema import FieldLike, Schema
from pyengine.fs.forking import register_for_child
from pyengine.replay.damage import OnDamage
from pyengine.replay.demand import check_demand
from pyengine.replay.owner import SlotOwner
from pyengine.replay.plan import plan_ring
from pyengine.replay.storage import Storage

if TYPE_CHECKING:
    from pyengine._native.control import RingControl


T = TypeVar("T")


class RingHolding:
    """Base of ReplayBuffer that owns the storage."""

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

    @property
    def storage(self) -> Storage | None:
        """Arena, control block and seal event, once rows exist or a restore made them."""
        return self._storage

    @property
    def control(self) -> RingControl | None:
        """The control block, once there is one."""
        return None if self._storage is None else self._storage.control

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
