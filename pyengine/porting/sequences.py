"""Stored rows into rows as a user knows them: where sequences begin, and stacks of their frames.

FORMAT.md says how: "@start" has bit 1 in the first row of a sequence and, with stacks, bit 2 in
opening rows, which are no transitions. A transition of which a frame is no longer there is left
out, as a restored ring leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.format.schema import START_FIELD, Schema

Array = NDArray[Any]
Flags = NDArray[np.bool_]

_START, _OPENING = 1, 2


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of a lane: `rows` by flat name, `row_ids` (int64), and `starts`, true where
    a row does not continue the one before it."""

    lane: int
    row_ids: NDArray[np.int64]
    starts: Flags
    rows: dict[str, Array]


class Sequences:
    """Follows the rows of one lane after the other; what it keeps is a few frames.

    `begin_lane` before the first row of a lane; `piece` for rows in their order. A gap between two
    calls ends a sequence.
    """

    def __init__(self, schema: Schema) -> None:
        self._pairs = schema.stacks
        self._shapes = {name: field.shape for name, field in schema.items()}
        self._depth = max((pair.depth for pair in schema.stacks), default=0)
        self.begin_lane(0)

    def begin_lane(self, lane: int) -> None:
        """Forget the lane before."""
        self._lane = lane
        self._begin(0)
        self._next_row = -1

    def _begin(self, row: int) -> None:
        self._run_begin = row
        self._sequence: int | None = None
        self._was_transition = False
        self._history: dict[str, Array] = {}

    def piece(self, first: int, raw: Mapping[str, Array], fields: Sequence[str]) -> Piece:
        """Return rows [first, first + n) with `fields`, of what files keep of them."""
        if first != self._next_row:
            self._begin(first)
        bits = raw[START_FIELD]
        count = len(bits)
        self._next_row = first + count
        row_ids = np.arange(first, first + count, dtype=np.int64)
        if not self._pairs:
            starts = (bits & _START) != 0
            starts[0] |= first == self._run_begin
            values = {name: raw[name] for name in fields if name in raw}
            return Piece(self._lane, row_ids, starts, values)
        begins = self._begins(row_ids, bits)
        is_whole = (begins >= 0) | (row_ids - self._depth >= self._run_begin)
        is_row = ((bits & _OPENING) == 0) & is_whole
        follows = np.concatenate(([self._was_transition], is_row[:-1]))
        self._was_transition = bool(is_row[-1])
        rows = {
            name: raw[name][is_row]
            for name in fields
            if name in raw and name not in {pair.next_obs for pair in self._pairs}
        }
        for pair in self._pairs:
            if pair.next_obs in raw:
                frames = self._with_history(pair.next_obs, raw[pair.next_obs])
                base = first + count - len(frames)
                for name, newest in ((pair.next_obs, 0), (pair.obs, 1)):
                    if name in fields:
                        ids = row_ids[is_row, None] - newest + np.arange(1 - pair.depth, 1)
                        ids = np.maximum(ids, begins[is_row, None])
                        stack = frames[ids - base]
                        rows[name] = stack.reshape(len(ids), *self._shapes[name])
        return Piece(self._lane, row_ids[is_row], ~follows[is_row], rows)

    def _begins(self, row_ids: NDArray[np.int64], bits: Array) -> NDArray[np.int64]:
        """Return where the sequence of each row begins; -1 where that was before the window."""
        known = -1 if self._sequence is None else self._sequence
        begins = np.maximum.accumulate(np.where(bits & _START, row_ids, known))
        self._sequence = int(begins[-1]) if begins[-1] >= 0 else None
        return begins

    def _with_history(self, name: str, frames: Array) -> Array:
        """Return the frames, behind those of the rows before them that a stack may need."""
        before = self._history.get(name)
        whole = frames if before is None else np.concatenate((before, frames))
        self._history[name] = whole[-self._depth :].copy()
        return whole
