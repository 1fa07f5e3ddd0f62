"""The reading side of a ring: its size, draws, gathers by ref and by position.

Each read is one native call under the shared lock, so that what it returns is of one instant. A
ring without rows has no memory yet, and reading makes none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyengine._native.ring import OPENING, START, VALID, BlockFault
from pyengine.errors import (
    ClosedError,
    DroppedRowError,
    EmptyRingError,
    UnknownFieldError,
    UnknownRefError,
)
from pyengine.format.counts import as_count
from pyengine.format.schema import Field, FieldLike, Schema
from pyengine.replay.batch import Batch
from pyengine.replay.binding import RingBinding
from pyengine.replay.damage import build_marks, settle_fault
from pyengine.replay.devices import check_device
from pyengine.replay.outputs import Outputs, to_device
from pyengine.replay.rows import as_refs
from pyengine.replay.steps import NStep, plan_steps
from pyengine.replay.storage import Storage

Array = NDArray[Any]
Refs = NDArray[np.int64]
T = TypeVar("T")

Weighing = tuple[NDArray[np.float32] | None, float]
"""Where the importance weights of a draw by priority go, and beta; (None, 0): a uniform draw."""


class RingReading(RingBinding):
    """Base of ReplayBuffer: what can be asked of a ring. Any thread, at any time."""

    def __init__(
        self,
        schema: Schema | Mapping[str, FieldLike],
        capacity: int,
        num_lanes: int,
        seed: int | None,
        memory_limit: int | None,
    ) -> None:
        super().__init__(schema, capacity, num_lanes, seed, memory_limit)
        self._outputs = Outputs(self.schema)

    def close(self) -> None:
        """Free the memory. Idempotent; later calls raise ClosedError. Batches stay valid.

        Waits for calls of other threads that are at work in it. RuntimeError inside `freeze`.
        """
        super().close()
        self._outputs.pool.close()

    def _after_fork_in_child(self) -> None:
        super()._after_fork_in_child()
        self._outputs.pool.close()  # the parent need not copy what nobody wants here

    def __len__(self) -> int:
        return self._look(Storage.valid_rows) or 0

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

    @property
    def lost_updates(self) -> int:
        """How many updates of a row came after it had left the window.

        One for each ref of an `update`, however many fields it set; saved and restored.
        """
        return self._look(lambda storage: storage.core.lost_updates) or 0

    def breaks(self, lane: int = 0) -> Refs:
        """Return the ids of the lane's valid rows that start a sequence, in order (int64).

        The first valid row behind dropped ones does, and the one behind opening rows.
        """
        lane = self._lane(lane)
        first, marks = self._marks(lane)
        is_valid = marks & VALID != 0
        behind_opening = np.zeros(len(marks), bool)
        behind_opening[1:] = marks[:-1] & OPENING != 0
        starting = np.flatnonzero(is_valid & ((marks & START != 0) | behind_opening))
        valid = np.flatnonzero(is_valid)
        for run in self.dropped:
            at = np.searchsorted(valid, run.first_row + run.row_count - first)
            if run.lane == lane and at < len(valid):
                starting = np.union1d(starting, valid[at])
        return starting + first

    def sample(
        self,
        batch_size: int,
        *,
        n_step: int | NStep | None = None,
        gamma: float | None = None,
        out: Any = None,
        device: Any = None,
    ) -> Batch:
        """Draw `batch_size` rows uniformly, with replacement, each valid row of the ring alike.

        Dropped rows (`dropped`) are none; while there are none, they change no draw.

        `out` takes a Batch or dict of arrays or CPU tensors of shape (batch_size, *shape), filled
        in place (pinned memory too); else arrays that are the caller's own, in memory that earlier
        batches have let go of: one that is kept costs new memory, and up to 256 MiB wait for the
        next. `device` gives torch tensors there, of `out`'s values where both are given. The draw
        is the ring's own PCG64: same seed, same rows, same calls, same batches.

        With `n_step` and `gamma` the reward of a row is the return of up to so many steps, and
        next_obs and the flags that end an episode are those of the last one: see NStep.

        Raises EmptyRingError; ConfigError for a device that is not there; DamageError naming path
        and offset where a mapped block is bad, or OSError where it cannot be read; with
        `on_damage="drop"` its rows are given up instead, and the batch is drawn anew.
        """
        refs = np.empty(as_count("batch_size", batch_size), np.int64)
        if n_step is not None or gamma is not None:
            return self._steps_batch(refs, n_step, gamma, out, device, draw=True)
        return self._batch(refs, out, device, draw=True)

    def gather(
        self,
        refs: Any,
        *,
        n_step: int | NStep | None = None,
        gamma: float | None = None,
        out: Any = None,
        device: Any = None,
    ) -> Batch:
        """Return the rows of `refs` (int64 of any shape, taken flat, as in `batch.indices`).

        Each field has shape (len(refs), *shape), all of one instant; `out`, `device`, `n_step` and
        `gamma` as for `sample`. Raises UnknownRefError for a ref outside the window,
        DroppedRowError for one that was given up; DamageError naming path and offset, or OSError,
        where a mapped block is bad; RowError for an unfit `out`. What `out` holds after an error is
        undefined.
        """
        wanted = as_refs("refs", refs)
        if n_step is not None or gamma is not None:
            return self._steps_batch(wanted, n_step, gamma, out, device)
        return self._batch(wanted, out, device)

    def gather_at(self, positions: Any, *, out: Any = None, device: Any = None) -> Batch:
        """Return the rows at `positions` (lane * rows per lane + row id modulo rows per lane).

        Otherwise as `gather`; `indices` are the refs found. A position without a valid row (see
        `refs_at`) is ref -1, which raises UnknownRefError.
        """
        wanted = as_refs("positions", positions)
        refs = np.empty(len(wanted), np.int64)
        return self._batch(refs, out, device, positions=wanted)

    def __getitem__(self, refs: Any) -> Batch:
        return self.gather(refs)

    def refs(self) -> Refs:
        """Return the refs of all valid rows, oldest row id first: int64 of shape (rows,).

        Dropped rows are left out.

        Lane after lane is looked at: with others adding meanwhile, each lane's is of its own
        instant, and rows may have left the window by the time they are gathered.
        """
        lanes = self.num_envs
        if self.schema.stacks:
            return self._marked_refs()
        parts = [
            np.arange(tail, total, dtype=np.int64) * lanes + lane
            for lane, (tail, total) in enumerate(self._windows())
        ]
        for run in self.dropped:
            ids = parts[run.lane] // lanes
            is_kept = (ids < run.first_row) | (ids >= run.first_row + run.row_count)
            parts[run.lane] = parts[run.lane][is_kept]
        return np.sort(np.concatenate(parts))

    def _marked_refs(self) -> Refs:
        parts = []
        for lane in range(self.num_envs):
            first, marks = self._marks(lane)
            parts.append((np.flatnonzero(marks & VALID) + first) * self.num_envs + lane)
        return np.sort(np.concatenate(parts))

    def refs_at(self, positions: Any) -> Refs:
        """Return the refs at `positions`, -1 where no valid row is: int64, (len(positions),).

        All of one instant; FieldDtypeError for positions that are no integers.
        """
        wanted = as_refs("positions", positions)
        found = np.full(len(wanted), -1, np.int64)
        self._look(lambda storage: storage.core.refs_at(wanted, found))
        return found

    def rows_at(self, name: str, positions: Refs) -> Array:
        """Return one field at `positions`, shape (len(positions), *shape); zero where no row is."""
        refs, values = self._gather_valid(name, positions)
        if len(values) == len(refs):
            return values
        rows = np.zeros((len(refs), *values.shape[1:]), values.dtype)
        rows[refs >= 0] = values
        return rows

    def _batch(
        self,
        refs: Refs,
        out: Any,
        device: Any,
        *,
        draw: bool = False,
        weighing: Weighing = (None, 0.0),
        positions: Refs | None = None,
    ) -> Batch:
        """Gather the rows of `refs`; draw them, or find them by position, in the same call."""
        device = check_device(device)
        outputs = self._outputs.flat(len(refs), out)
        if positions is not None or not self._gather_exact(refs, outputs, draw, weighing):
            ordered = self._outputs.check(outputs, len(refs))
            self._gather(refs, ordered, draw=draw, weighing=weighing, positions=positions)
        return self._outputs.batch(outputs, refs, out, device)

    def _with_marks(self, call: Callable[[Storage], T]) -> T | None:
        """As `_look`, once what spans rows can be asked for."""

        def marked(storage: Storage) -> T:
            if not storage.core.has_marks:
                build_marks(storage)
            return call(storage)

        return self._look(marked)

    def _marks(self, lane: int) -> tuple[int, NDArray[np.uint8]]:
        """Return (row id of the first, marks of the rows of a lane's window)."""
        first, marks = self._with_marks(lambda storage: storage.core.marks(lane)) or (0, b"")
        return first, np.frombuffer(marks, np.uint8)

    def _steps_batch(
        self,
        refs: Refs,
        n_step: int | NStep | None,
        gamma: float | None,
        out: Any,
        device: Any,
        *,
        draw: bool = False,
        weighing: Weighing = (None, 0.0),
    ) -> Batch:
        plan = plan_steps(self.schema, n_step, gamma)
        device = check_device(device)
        outputs = self._outputs.flat(len(refs), out)
        ordered = self._outputs.check(outputs, len(refs))
        lasts, steps = np.empty(len(refs), np.int64), np.empty(len(refs), np.int64)
        discounts = np.empty(len(refs), np.float32)

        def gather(storage: Storage) -> bool:
            def attempt(is_drawing: bool) -> bool:
                storage.core.gather_steps(
                    refs,
                    ordered,
                    is_drawing,
                    plan.most,
                    plan.gamma,
                    plan.reward,
                    plan.of_last,
                    lasts,
                    steps,
                    discounts,
                    *weighing,
                )
                return True

            return repeat_settled(storage, None, attempt, draw=draw)

        self._check_found(self._with_marks(gather), refs, is_drawn=draw)
        batch = self._outputs.batch(outputs, refs, out, device)
        batch.steps, batch.discounts = to_device(steps, device), to_device(discounts, device)
        return batch

    def _gather_exact(
        self, refs: Refs, outputs: dict[str, Any], draw: bool, weighing: Weighing
    ) -> bool:
        """Gather where the outputs are exactly what the native core takes; whether they were."""
        storage, forms = self._storage, self._outputs.tensor_forms
        if storage is None:
            return False
        try:
            return storage.core.gather_exact(refs, outputs, np.ndarray, forms, draw, *weighing)
        except BlockFault as fault:
            first = fault

        def gather(is_drawing: bool) -> bool:
            return storage.core.gather_exact(
                refs, outputs, np.ndarray, forms, is_drawing, *weighing
            )

        try:
            return repeat_settled(storage, first, gather, draw=draw)
        except ClosedError:
            return False  # a restore put other storage in its place

    def _gather(
        self,
        refs: Refs,
        ordered: list[Array | None],
        *,
        draw: bool,
        weighing: Weighing,
        positions: Refs | None,
    ) -> None:
        def gather(storage: Storage) -> bool:
            def attempt(is_drawing: bool) -> bool:
                if positions is None:
                    storage.core.gather(refs, ordered, is_drawing, *weighing)
                else:
                    storage.core.gather_at(positions, refs, ordered, False)
                return True

            return repeat_settled(storage, None, attempt, draw=draw)

        wanted = np.full(len(refs), -1, np.int64) if positions is not None else refs
        self._check_found(self._look(gather), wanted, is_drawn=draw)

    def _check_found(self, is_done: bool | None, refs: Refs, *, is_drawn: bool) -> None:
        """Raise where a ring without rows was asked for some."""
        if is_done:
            return
        if is_drawn:
            raise EmptyRingError("the ring holds no row yet")
        if len(refs):
            raise no_row_yet(int(refs[0]))

    def _gather_valid(self, name: str, positions: Refs) -> tuple[Refs, Array]:
        """Return (refs at positions, -1 where no row is; one field of the rows there are)."""
        values, ordered = self._outputs.field(name, len(positions))
        refs = np.full(len(positions), -1, np.int64)

        def gather(storage: Storage) -> int:
            return repeat_settled(
                storage,
                None,
                lambda _: storage.core.gather_at(positions, refs, ordered, True),
                draw=False,
            )

        found = self._look(gather) or 0
        return refs, values[:found]

    def _lane(self, lane: Any) -> int:
        return as_count("lane", lane, most=self.num_envs - 1)

    def _per_lane(self, values: list[int]) -> Any:
        return values[0] if self.num_envs == 1 else np.asarray(values, np.int64)

    def _field_exists(self, name: str) -> Field:
        if name not in self.schema:
            raise UnknownFieldError(
                f"the schema has no field {name!r}; it has {', '.join(self.schema)}",
                field=name,
                expected=tuple(self.schema),
                got=name,
            )
        return self.schema[name]


def no_row_yet(ref: int) -> UnknownRefError:
    """Return the error for a ref of a ring that has no storage yet."""
    return UnknownRefError(
        f"ref {ref} names no row of the ring's window: it holds no row yet",
        field="refs",
        expected="a ref in the window",
        got=ref,
    )


def repeat_settled(
    storage: Storage, fault: BlockFault | None, call: Callable[[bool], T], *, draw: bool
) -> T:
    """Call with whether to draw, again after each bad block that could be settled.

    `fault`: what the first call met, where it was made already. Refs that were drawn stay, so that
    a block which was wrong only once changes no draw; where rows were dropped, or drawn ones left
    the window meanwhile, others are drawn. Ends: each turn verifies a block or gives its rows up.
    """
    is_drawing = draw
    while True:
        try:
            if fault is not None:
                is_drawing = settle_fault(storage, fault) and draw
            return call(is_drawing)
        except BlockFault as next_fault:
            fault = next_fault
        except (UnknownRefError, DroppedRowError):
            if is_drawing or not draw:
                raise
            is_drawing, fault = True, None
