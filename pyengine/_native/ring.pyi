from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

class BlockFault(Exception):
    """A mapped block that cannot be read (`error_number` > 0) or whose hash differs (0)."""

    lane: int
    segment: int
    offset: int
    block: int
    expected: int | None
    got: int | None
    error_number: int
    def __init__(
        self,
        lane: int,
        segment: int,
        offset: int,
        block: int,
        expected: int | None,
        got: int | None,
        error_number: int,
    ) -> None: ...

START: int
OPENING: int
VALID: int

class BrokenStack(Exception):
    """next_obs of pair number `pair` does not follow its obs, in the row of this step and lane."""

    pair: int
    step: int
    lane: int
    def __init__(self, pair: int, step: int, lane: int) -> None: ...

class NoMemory(Exception):
    """Shared memory had no room for a segment slot."""

    error_number: int

def exchange(
    owner: object, name: str, memory: RingCore | None, former: object, value: object
) -> bool:
    """Set an attribute of a plain object from `former` to `value`; whether it was `former`.

    One native call, in which no signal handler runs, and with every other call of `memory` held
    off: ClosedError, RuntimeError as for any of them.
    """

class RingCore:
    """The trainer's side of a ring over its arena (csrc/core/ring.h); each call is one native call.

    Fields go by number: append fields in schema order, as callers give them, then mutable fields.
    `given` has (target, bytes of a row, shape) of each; targets number the append fields that rows
    keep with the start field, the mutable fields, and obs and next_obs of each of `stacks`, which
    has (number of the append field that keeps the frames, depth). Holds a view of the arena until
    closed. Calls raise ClosedError after a close, UnknownRefError, EmptyRingError, BlockFault and
    NoMemory; wrong sizes are ValueError: the Python layer checks before. Any thread may call.
    """

    seed_state: tuple[int, int]
    lost_updates: int
    mapped_segments: int
    def __init__(
        self,
        arena: Buffer,
        arena_fd: int,
        seal_event: int,
        header_image: bytes,
        names: tuple[str, ...],
        formats: bytes,
        given: tuple[tuple[int, int, tuple[int, ...]], ...],
        mutables: tuple[tuple[int, int], ...],
        defaults: tuple[bytes | None, ...],
        end_fields: tuple[int, ...],
        stacks: tuple[tuple[int, int], ...],
    ) -> None: ...
    def close(self) -> None:
        """Wait until no call is inside, then let go of the arena; RuntimeError inside `locked`."""
    def disarm(self) -> None: ...
    def locked(self) -> AbstractContextManager[None]:
        """Hold off every other call of any thread, where no signal handler can interrupt."""
    def append(
        self,
        values: list[Any],
        lane_begin: int,
        lane_count: int,
        steps: int,
        done: int,
        mask: Any,
    ) -> int:
        """Append steps [done, steps); return how many are done (fewer: no slot is free).

        BrokenStack, with the ring unchanged. NoMemory from a call that gets no further than `done`.
        """
    def append_exact(self, fields: dict[str, Any], mask: Any, has_steps: bool, lane: int) -> int:
        """Append one step, or steps, given exactly; `lane` -1: to all of them.

        Returns how many steps are left: more than 0 where no slot is free, or no memory for one.
        -1: look closer, nothing was done. BrokenStack, likewise.
        """
    asks_for_memory: bool
    """Whether a slot was left without memory for want of `allow_bytes`."""
    def allow_bytes(self, count: int) -> None:
        """Let slots take so many bytes of shared memory, from now on, before they ask again."""
    def reserve_ahead(self, ahead: int) -> bool | None:
        """Give one more free slot memory: True. False: enough have it for now. None: all, for good.

        NoMemory where none can be had now; None after a close too.
        """
    def slots(self) -> tuple[int, int]:
        """Return how many slots have memory: those that are free, and all."""
    def break_lanes(self, lane_begin: int, lane_count: int) -> None: ...
    def hold(self, words: Buffer, offset: int, sequence: int) -> None:
        """Inside `locked`: register a pending snapshot; `words` stays taken until `drop_holds`."""
    def drop_holds(self) -> None:
        """Forget all pending snapshots; also where this thread is inside `locked`."""
    def take_retired(self) -> int: ...
    def gather(
        self,
        refs: NDArray[np.int64],
        outputs: Sequence[Any],
        draw: bool = False,
        weights: NDArray[np.float32] | None = None,
        beta: float = 0.0,
    ) -> None:
        """Gather rows, drawn first if asked: with `weights` by priority, which fills them."""
    def gather_exact(
        self,
        refs: NDArray[np.int64],
        outputs: dict[str, Any],
        kind: type,
        tensors: tuple[Any, ...] | None,
        draw: bool,
        weights: NDArray[np.float32] | None = None,
        beta: float = 0.0,
    ) -> bool:
        """Gather into a flat dict of exact outputs. False: look closer (nothing was done).

        `kind` is the type of array, `tensors` the type of tensor and (dtype, shape) of each field.
        """
    def keep_priorities(
        self, field: int, alpha: float, epsilon: float, is_stratified: bool, is_by_batch: bool
    ) -> None:
        """Keep the rows' priorities in a mutable float32 field, by number; before any other call.

        What follows is ValueError without it.
        """
    highest_priority: float
    """Stored priority that new rows get: the highest so far."""
    draws: int
    """Batches drawn by priority so far; this and the one above also inside `locked`."""
    def update_priorities(self, refs: Any, priorities: Any) -> int | None:
        """Store new priorities; return how many refs had left the window. PriorityError.

        Takes int64 refs and as many float32 priorities, in one piece. None: look closer.
        """
    def priority_tree(self) -> list[tuple[bytes, bytes]]:
        """Return all nodes, brought up to date: float64 sums and minima by level, leaves first."""
    def ask_draws(self, seed_state: tuple[int, int], count: int, verified: bool = False) -> None:
        """Start reading the rows that so many draws of a generator in this state will give; with
        `verified`, wait for them and verify their blocks. Damage is left to whoever meets it."""
    def refs_at(self, positions: NDArray[np.int64], refs: NDArray[np.int64]) -> None: ...
    def gather_at(
        self,
        positions: NDArray[np.int64],
        refs: NDArray[np.int64],
        outputs: Sequence[Any],
        compact: bool,
    ) -> int:
        """Gather by position, all of one instant; `refs` receives the refs, -1 where no row is.

        `compact` puts the rows there are first; returns their number. Else they must all be there.
        """
    has_marks: bool
    """Whether `marks` are there, which all that spans rows needs."""
    valid_rows: int
    """Rows that can be drawn, as marks say."""
    def build_marks(self) -> None:
        """Read the start flags of all rows. BlockFault for a bad block, with nothing changed."""
    def marks(self, lane: int) -> tuple[int, bytes]:
        """Return (row id of the first, a mark a row) of a lane's window; bits as named above."""
    def gather_steps(
        self,
        refs: NDArray[np.int64],
        outputs: Sequence[Any],
        draw: bool,
        most: int,
        gamma: float,
        reward: int,
        of_last: bytes,
        lasts: NDArray[np.int64],
        steps: NDArray[np.int64],
        discounts: NDArray[np.float32],
        weights: NDArray[np.float32] | None = None,
        beta: float = 0.0,
    ) -> None:
        """Gather with returns over up to `most` steps; `of_last` marks fields of the last row.

        `weights` and `beta` as for `gather`.
        """
    def gather_windows(
        self,
        refs: NDArray[np.int64],
        lengths: NDArray[np.int64],
        outputs: Sequence[Any],
        draw: bool,
        pad: bool,
    ) -> None:
        """Gather windows; `refs` repeats the last row of a short one, whose outputs are zero."""
    def update(self, refs: NDArray[np.int64], values: Sequence[Any]) -> int:
        """Overwrite mutable fields (None: stays) at refs; return how many had left the window.

        One value a mutable field: for each ref, or one for all of them.
        """
    def assign(
        self,
        field: int,
        item_bytes: int,
        first: int,
        step: int,
        count: int,
        places: NDArray[np.int64] | None,
        values: Any,
    ) -> None:
        """Overwrite items of a mutable field, counted flat from its start: one value each, or one.

        The items are `places`, or first, first + step and so on.
        """
    def set_lane(self, lane: int, tail: int, total_count: int, break_pending: bool) -> None: ...
    def map_segment(
        self, lane: int, segment: int, address: int, record: tuple[int, ...]
    ) -> None: ...
    def spill_segment(self, lane: int, segment: int, address: int) -> bool:
        """Let a PERSISTED segment of the window live in its file mapped at `address`; its slot is
        free then. False where it is none: not PERSISTED, in a file already, or aged out.
        """
    def open_segment(self, lane: int, segment: int) -> int | None:
        """Open a slot; return the offset of its image. None: see `asks_for_memory`."""
    def verify_blocks(self, lane: int, segment: int, first: int, end: int) -> None:
        """Verify blocks [first, end) of a mapped segment; BlockFault for the first bad one.

        Nothing where the segment left the window.
        """
    def map_pages(self, lane: int, segment: int) -> None:
        """Have the pages of a mapped segment found without a fault from now on.

        Meant for pages that are in memory: others are read. Nothing where it left the window.
        """
    def forget_segment(self, lane: int, segment: int) -> None:
        """Let go of a mapped segment's pages, so that the page cache may drop them too.

        None of its blocks counts as verified any more.
        """
    def drop_rows(self, lane: int, first: int, count: int) -> int:
        """Give up rows of the window; return how many were valid until now."""
    @property
    def dropped_rows(self) -> int: ...
    def dropped(self) -> list[tuple[int, int, int]]:
        """Return the dropped runs of the window: lane, first row id, count; inside `locked` too."""
