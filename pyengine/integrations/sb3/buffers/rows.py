"""BufferRows: the rows of an adopted replay buffer, in a ring, by Stable-Baselines3's indices.

Stable-Baselines3 addresses a row by (step, env): the step counts from 0 to buffer_size and wraps
around, the env is the ring's lane. All lanes have the same number of rows, so that one number, the
row id that step 0 began with (`origin`), turns steps into row ids. A buffer that is emptied moves
the origin to the newest row: row ids are never reused, and the rows before it age out.

Beside the ring there are the origin, the marks (see marks) and, where observations are
stored once for two rows (optimize_memory_usage), the newest next observation, which is no part of a
row yet. All of that is small, and is tracked together as the ring's index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ImmutableFieldError, StateMismatchError
from pyengine.format.schema import Field, Schema
from pyengine.integrations.sb3.buffers.marks import Marks
from pyengine.replay.plan import numpy_dtype
from pyengine.replay.ring import ReplayBuffer

Array = NDArray[Any]
Refs = NDArray[np.int64]

MARKED = ("dones", "timeouts")
OBSERVATIONS = "observations"
READ_ROWS = 4096


class BufferRows:
    """Owns the ring of one buffer: `steps` rows in each of `lanes`.

    No memory is reserved before the first `append`. With `overlaps` the next observation of a row
    is the observation of the row after it. Not thread-safe. `close` frees the ring.
    """

    def __init__(
        self, fields: Mapping[str, Field], steps: int, lanes: int, *, overlaps: bool
    ) -> None:
        self.ring = ReplayBuffer(Schema(fields), steps * lanes, num_envs=lanes, seed=0)
        self.steps = steps
        self.lanes = lanes
        self.fields = dict(fields)
        self._origin = 0
        self._marks = {name: Marks(name) for name in MARKED}
        self._row = {
            name: np.zeros((lanes, *field.shape), numpy_dtype(field))
            for name, field in fields.items()
        }
        self._tail = np.zeros_like(self._row[OBSERVATIONS]) if overlaps else None

    @property
    def total(self) -> int:
        """Rows that each lane was ever given."""
        control = self.ring.control
        return 0 if control is None else control.total_count(0)

    @property
    def origin(self) -> int:
        """The row id that step 0 began with."""
        return self._origin

    @property
    def oldest(self) -> int:
        """The id of the oldest row in the buffer."""
        return max(self._origin, self.total - self.steps)

    @property
    def pos(self) -> int:
        """The step that the next row goes to."""
        return (self.total - self._origin) % self.steps

    @property
    def full(self) -> bool:
        """Whether every step holds a row."""
        return self.total - self._origin >= self.steps

    def append(self, values: Mapping[str, Any], tail: Any = None) -> None:
        """Append one row to each lane, cast and broadcast as an assignment to an array would.

        `tail` is the next observation where rows overlap. Raises what such an assignment raises,
        and what the ring's `add` does; nothing has changed then.
        """
        row = {name: self._cast(name, value) for name, value in values.items()}
        if self._tail is None:
            self.ring.add(row)
            return
        following = np.empty_like(self._tail)
        following[...] = tail
        self.ring.add(row)
        self._tail = following

    def _cast(self, name: str, value: Any) -> Array:
        place = self._row[name]
        if (
            type(value) is np.ndarray
            and value.dtype == place.dtype
            and value.shape == place.shape
            and value.flags.c_contiguous
        ):
            return value
        place[...] = value
        return place

    def clear(self) -> None:
        """Empty the buffer. The rows stay in memory until as many new ones have come."""
        self._origin = self.total

    def mark(self, name: str, steps: Array, lanes: Array, values: Any) -> None:
        """Let the rows at (steps, lanes) read `values` from now on; ImmutableFieldError."""
        if name not in MARKED:
            raise ImmutableFieldError(
                f"{name}: rows of an adopted replay buffer do not change once added; only "
                f"{' and '.join(MARKED)} can be marked",
                field=name,
                expected=f"one of {', '.join(MARKED)}",
                got=name,
            )
        written = self.is_written(steps)
        if not written.all():
            raise ImmutableFieldError(
                f"{name}: step {int(np.asarray(steps)[~written].flat[0])} holds no row yet",
                field=name,
                expected="steps that hold a row",
                got=int((~written).sum()),
            )
        refs = self.refs(steps, lanes)
        given = np.broadcast_to(np.asarray(values, np.float32), refs.shape)
        self._forget_old_marks()
        self._marks[name].set(refs.reshape(-1), given.reshape(-1))

    def refs(self, steps: Array, lanes: Array) -> Refs:
        """Return the refs of rows (steps, lanes), which must hold a row each."""
        total, rows = self.total, self.total - self._origin
        if rows < self.steps:
            ids = steps + self._origin
        else:
            # The oldest row is at `pos`.
            ids = (steps - rows) % self.steps + (total - self.steps)
        refs: Refs = ids * self.lanes + lanes
        return refs

    def gather(self, refs: Refs, names: tuple[str, ...]) -> dict[str, Array]:
        """Return fields of the rows `refs`, each a fresh array of shape (*refs.shape, *shape)."""
        flat = refs.reshape(-1)
        out = {
            name: np.empty((len(flat), *self._row[name].shape[1:]), self._row[name].dtype)
            for name in names
        }
        self.ring.gather(flat, out=out)
        for name, marks in self._marks.items():
            if name in out and marks:
                marks.apply(flat, out[name])
        if refs.ndim == 1:
            return out
        return {name: a.reshape(*refs.shape, *a.shape[1:]) for name, a in out.items()}

    def read(self, name: str, steps: Array, lanes: Array) -> Array:
        """Return one field at (steps, lanes) as stock's array holds it: zero where no row is."""
        lead = np.shape(steps)
        steps, lanes = np.reshape(steps, -1), np.reshape(lanes, -1)
        values = np.zeros((len(steps), *self._row[name].shape[1:]), self._row[name].dtype)
        # In blocks, so that a copy of the whole column needs no memory for a second one.
        for start in range(0, len(steps), READ_ROWS):
            block = slice(start, start + READ_ROWS)
            written = self.is_written(steps[block])
            if written.any():
                refs = self.refs(steps[block][written], lanes[block][written])
                values[block][written] = self.gather(refs, (name,))[name]
        if name == OBSERVATIONS:
            self.put_tail(steps, lanes, values)
        return values.reshape(*lead, *values.shape[1:])

    def put_tail(self, steps: Array, lanes: Array, observations: Array) -> None:
        """Where rows overlap, put the newest next observation in at the step after the newest."""
        if self._tail is None or self.total == self._origin:
            return
        ahead = steps == self.pos
        observations[ahead] = self._tail[lanes[ahead]]

    def next_observations(self, steps: Array, lanes: Array) -> Array:
        """Return the observations of the rows after (steps, lanes), where rows overlap."""
        following = (steps + 1) % self.steps
        # The row after the newest one is not there yet: read another, then put the tail in.
        ahead = following == self.pos
        refs = self.refs(np.where(ahead, steps, following), lanes)
        values = self.gather(refs, (OBSERVATIONS,))[OBSERVATIONS]
        self.put_tail(following, lanes, values)
        return values

    def is_written(self, steps: Array) -> NDArray[np.bool_]:
        """Whether steps hold a row."""
        return np.asarray(steps) < (self.steps if self.full else self.pos)

    def get_state(self) -> dict[str, Any]:
        """Return what is not in the ring."""
        self._forget_old_marks()
        return {
            "total": self.total,
            "origin": self._origin,
            "marks": {name: marks.get_state() for name, marks in self._marks.items()},
            "tail": self._tail,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back, after the ring was restored: whole, its newest rows, or none."""
        total = self.total
        if total not in (0, state["total"]):
            raise StateMismatchError(
                f"the ring holds {total} rows a lane, its index was saved at {state['total']}",
                component="replay",
                expected=total,
                got=state["total"],
            )
        tail = 0 if total == 0 else int(np.min(self.ring.tail))
        is_whole = total - tail >= self.steps
        self._origin = min(total, state["origin"] if is_whole else max(tail, state["origin"]))
        for name, marks in self._marks.items():
            marks.set_state(state["marks"][name])
        if total == 0:
            self._forget_all_marks()
        if self._tail is not None:
            self._tail = np.array(state["tail"])

    def _forget_old_marks(self) -> None:
        for marks in self._marks.values():
            marks.drop_before(self.oldest * self.lanes)

    def _forget_all_marks(self) -> None:
        for marks in self._marks.values():
            marks.drop_before(np.iinfo(np.int64).max)

    def close(self) -> None:
        """Free the ring. Idempotent."""
        self.ring.close()
