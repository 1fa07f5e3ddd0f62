"""BufferRows: the rows of an adopted buffer, in a ring, by Tianshou's indices.

Tianshou addresses a row by one number: sub-buffer times its size, plus a place that wraps around.
A sub-buffer is a lane of the ring. Lanes fill up at their own pace, and a buffer that is emptied
begins at place 0 again, while row ids are never reused: so each lane has an `origin`, the row id
that belongs to place 0.

Rewards and flags are kept as plain arrays too (`mirrors`), made anew from the rows by a restore:
the library's compiled code takes whole arrays of them, and would be compiled anew for ones that
cannot be written to (4 to 12 s, measured 2026-11-30). The rows are what is saved; a second copy
shows at each snapshot whether anybody wrote into a mirror.

Rows never change. What the library lays over them lives beside them:

    overlays   goals and rewards that hindsight replay changes until the next draw; never saved
    closed     rows at which an episode was cut off because its environment was reset; saved
    extras     (extras.py) what a row cannot hold; saved by copying
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import FieldShapeError, ImmutableFieldError, StateMismatchError
from pyengine.format.schema import Field, Schema
from pyengine.integrations.tianshou.buffers.overlay import Overlay
from pyengine.replay.plan import numpy_dtype
from pyengine.replay.ring import ReplayBuffer

Array = NDArray[Any]
Positions = NDArray[np.int64]

MIRRORED = ("rew", "done", "terminated", "truncated")
READ_ROWS = 4096


class BufferRows:
    """Owns the ring of one buffer: `per_lane` rows in each of `lanes`.

    There is no ring before `lay_out` says what a row is, and no memory before the first `append`.
    `rewrites` allows the library to lay values over rows. Not thread-safe; `close` frees the ring.
    """

    def __init__(self, lanes: int, per_lane: int, *, rewrites: bool) -> None:
        self.lanes = lanes
        self.per_lane = per_lane
        self.size = lanes * per_lane
        self.rewrites = rewrites
        self.fields: dict[str, Field] = {}
        self.mirrors: dict[str, Array] = {}
        self._as_added: dict[str, Array] = {}
        self._ring: ReplayBuffer | None = None
        self._row: dict[str, Array] = {}
        self._totals = np.zeros(lanes, np.int64)
        self._origins = np.zeros(lanes, np.int64)
        self._newest_null = np.full(lanes, -1, np.int64)
        self._overlays = [Overlay() for _ in range(lanes)]
        self._closed: set[int] = set()

    @property
    def ring(self) -> ReplayBuffer | None:
        """The ring; None as long as nobody knows what a row is."""
        return self._ring

    def lay_out(self, fields: Mapping[str, Field]) -> None:
        """Make the ring, for rows of these fields."""
        self.fields = dict(fields)
        self._ring = ReplayBuffer(Schema(self.fields), self.size, num_envs=self.lanes, seed=0)
        self._row = {
            name: np.zeros((self.lanes, *field.shape), numpy_dtype(field))
            for name, field in self.fields.items()
        }
        self.mirrors = {
            name: np.zeros((self.size, *row.shape[1:]), row.dtype)
            for name, row in self._row.items()
            if name in MIRRORED
        }
        self._as_added = {name: mirror.copy() for name, mirror in self.mirrors.items()}

    def column_dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of a field's values."""
        return self._row[name].dtype

    def append(self, positions: Positions, values: Mapping[str, Any]) -> None:
        """Append one row to each lane that `positions` lie in: they are the places it goes to.

        Values have shape (len(positions), *shape), or broadcast to it, and are cast as an
        assignment to an array would; a field that is missing becomes zero. Raises FieldShapeError,
        StateMismatchError where the library's cursor is not the ring's, and what the ring's `add`
        does: nothing has changed then.
        """
        lanes = positions // self.per_lane
        if len(lanes) > 1 and len(np.unique(lanes)) < len(lanes):
            for at in range(len(lanes)):
                one = {name: self._part(name, value, at) for name, value in values.items()}
                self.append(positions[at : at + 1], one)
            return
        self._check_places(positions, lanes)
        is_whole = len(lanes) == self.lanes and bool((lanes == np.arange(self.lanes)).all())
        row = {name: self._cast(name, values.get(name, 0), lanes, is_whole) for name in self.fields}
        mask = None
        if not is_whole:
            mask = np.zeros(self.lanes, np.bool_)
            mask[lanes] = True
        assert self._ring is not None
        self._ring.add(row, mask=mask)
        for name in self.mirrors:
            self._set_mirror(name, positions, row[name] if is_whole else row[name][lanes])
        has_null = self._nulls(row)
        self._newest_null[lanes[has_null[lanes]]] = self._totals[lanes[has_null[lanes]]]
        self._totals[lanes] += 1

    def _set_mirror(self, name: str, positions: Positions, values: Any) -> None:
        self.mirrors[name][positions] = values
        self._as_added[name][positions] = values

    def _check_mirrors(self) -> None:
        """Raise ImmutableFieldError where somebody wrote into a mirror: nothing would save it."""
        for name, mirror in self.mirrors.items():
            if self.rewrites and name == "rew":
                continue
            is_other = mirror != self._as_added[name]
            is_other &= (mirror == mirror) | (self._as_added[name] == self._as_added[name])
            if is_other.any():
                at = int(np.flatnonzero(is_other.reshape(self.size, -1).any(axis=1))[0])
                raise ImmutableFieldError(
                    f"{name}: row {at} was changed after it was added; rows of a buffer in a ring "
                    "do not change. Put what changes into a key of its own, by "
                    "buffer.set_array_at_key(array, key)",
                    field=name,
                    expected=str(self._as_added[name][at]),
                    got=str(mirror[at]),
                )

    def _part(self, name: str, value: Any, at: int) -> Any:
        """Return what `value` holds for one row of several."""
        array = np.asarray(value)
        return array[at : at + 1] if array.ndim > len(self.fields[name].shape) else array

    def _check_places(self, positions: Positions, lanes: Positions) -> None:
        places = (self._totals - self._origins)[lanes] % self.per_lane
        expected = lanes * self.per_lane + places
        if not np.array_equal(positions, expected):
            raise StateMismatchError(
                f"the buffer's cursor is at {positions.tolist()} and its rows at "
                f"{expected.tolist()}: an earlier add was interrupted, or something else has moved "
                "the cursor. Restore a snapshot",
                component="replay",
                expected=expected.tolist(),
                got=positions.tolist(),
            )

    def _cast(self, name: str, value: Any, lanes: Positions, is_whole: bool) -> Array:
        place = self._row[name]
        if is_whole and _fits(value, place):
            whole: Array = value
            return whole
        try:
            if is_whole:
                place[...] = value
            else:
                place[lanes] = value
        except ValueError as error:
            raise FieldShapeError(
                f"field {name!r}: {error}",
                field=name,
                expected=(len(lanes), *place.shape[1:]),
                got=np.shape(value),
            ) from None
        return place

    def _nulls(self, row: Mapping[str, Array]) -> NDArray[np.bool_]:
        found = np.zeros(self.lanes, np.bool_)
        for value in row.values():
            if value.dtype.kind == "f":
                found |= np.isnan(value).reshape(self.lanes, -1).any(axis=1)
        return found

    def has_null(self) -> bool:
        """Return whether a value of a row is NaN; looks at no row, each was looked at once."""
        oldest = np.maximum(self._totals - self.per_lane, self._origins)
        return bool((self._newest_null >= oldest).any())

    def clear(self) -> None:
        """Empty the buffer. The rows stay in memory until as many new ones have come."""
        self._origins = self._totals.copy()
        self._closed.clear()
        self.forget_laid()

    def fill(self, lane: int, place: int, values: Mapping[str, Array]) -> None:
        """Append the rows of a stock buffer to a lane, oldest first; `place` is its cursor."""
        assert self._ring is not None
        count = len(next(iter(values.values())))
        self._origins[lane] = 0 if count < self.per_lane else -place
        self._totals[lane] = count
        if not count:
            return
        self._ring.extend(dict(values), lane=lane)
        positions = self.positions(np.arange(count, dtype=np.int64) * self.lanes + lane)
        for name in self.mirrors:
            self._set_mirror(name, positions, values[name])
        for value in values.values():
            if value.dtype.kind == "f" and (nulls := np.isnan(value).reshape(count, -1)).any():
                newest = int(np.flatnonzero(nulls.any(axis=1))[-1])
                self._newest_null[lane] = max(newest, self._newest_null[lane])

    def positions(self, refs: Positions) -> Positions:
        """Return the library's indices of rows by ref."""
        lanes = refs % self.lanes
        found: Positions = lanes * self.per_lane
        found += (refs // self.lanes - self._origins[lanes]) % self.per_lane
        return found

    def _refs(self, positions: Positions) -> tuple[Positions, NDArray[np.bool_]]:
        """Return refs of the rows at `positions`, and where there is one."""
        lanes = positions // self.per_lane
        places = positions - lanes * self.per_lane
        totals, origins = self._totals[lanes], self._origins[lanes]
        counts = totals - origins
        is_full = counts >= self.per_lane
        # In a full lane the oldest row is where the next one goes.
        ids = np.where(
            is_full, totals - self.per_lane + (places - counts) % self.per_lane, origins + places
        )
        return ids * self.lanes + lanes, is_full | (places < counts)

    def read(self, name: str, positions: Positions) -> Array:
        """Return one field at `positions` (any shape): zero where no row is."""
        flat = positions.reshape(-1)
        row = self._row[name]
        values = np.empty((len(flat), *row.shape[1:]), row.dtype)
        # In blocks, so that a copy of everything needs no memory for a second one.
        for start in range(0, len(flat), READ_ROWS):
            self._gather(name, flat[start : start + READ_ROWS], values[start : start + READ_ROWS])
        return values.reshape(*positions.shape, *row.shape[1:])

    def _gather(self, name: str, positions: Positions, values: Array) -> None:
        assert self._ring is not None
        refs, is_row = self._refs(positions)
        if is_row.all():
            self._ring.gather(refs, out={name: values})
        else:
            values[...] = 0
            if is_row.any():
                values[is_row] = self._ring.gather(refs[is_row], out={
                    name: np.empty((int(is_row.sum()), *values.shape[1:]), values.dtype)
                })[name]  # fmt: skip
        if self.rewrites:
            for overlay in self._overlays:
                overlay.apply(name, positions, values)

    def lay(self, name: str, positions: Positions, value: Any) -> None:
        """Let rows read `value` until `forget_laid`; ImmutableFieldError unless `rewrites`."""
        if not self.rewrites:
            raise ImmutableFieldError(
                f"{name}: rows of a buffer in a ring do not change once added; put what changes "
                "into a key of its own, by buffer.set_array_at_key(array, key)",
                field=name,
                expected="no change",
                got=f"{positions.size} rows",
            )
        flat = positions.reshape(-1)
        shape = self._row[name].shape[1:]
        given = np.broadcast_to(np.asarray(value), (*positions.shape, *shape))
        given = given.reshape(len(flat), *shape).astype(self._row[name].dtype)
        lanes = flat // self.per_lane
        for lane in np.unique(lanes):
            is_here = lanes == lane
            self._overlays[lane].lay(name, flat[is_here], given[is_here])

    def forget_laid(self, lane: int | None = None) -> None:
        """Let the rows of one lane, or all, read as they were added."""
        for one in range(self.lanes) if lane is None else (lane,):
            self._overlays[one].clear()

    def restore_mirror(self, name: str, positions: Positions) -> None:
        """Put what was added into a mirrored field that was written to."""
        flat = positions.reshape(-1).astype(np.int64)
        self.mirrors[name][flat] = self._as_added[name][flat]

    def close_episodes(self) -> None:
        """Mark the newest row of every lane as truncated, unless its episode ended there.

        Its environment was reset: nothing that spans rows goes on from it.
        """
        for lane in range(self.lanes):
            if self._totals[lane] == self._origins[lane]:
                continue
            ref = int((self._totals[lane] - 1) * self.lanes + lane)
            at = self.positions(np.array([ref]))
            if not self.mirrors["done"][at].any():
                self._closed.add(ref)
                self._mark_closed()

    def _mark_closed(self) -> None:
        oldest = np.maximum(self._totals - self.per_lane, self._origins)
        self._closed = {
            ref for ref in self._closed if ref // self.lanes >= oldest[ref % self.lanes]
        }
        at = self.positions(np.array(sorted(self._closed), np.int64))
        for name in ("done", "truncated"):
            self._set_mirror(name, at, True)

    def get_state(self) -> dict[str, Any]:
        """Return what is not in the ring; ImmutableFieldError where rows were written to."""
        self._check_mirrors()
        if self._closed:
            self._mark_closed()
        return {
            "totals": self._totals,
            "origins": self._origins,
            "newest_null": self._newest_null,
            "closed": np.array(sorted(self._closed), np.int64),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back, after the ring was restored, and make the mirrors anew."""
        total = np.zeros(self.lanes, np.int64)
        if self._ring is not None:
            total[...] = self._ring.total_count
        if not np.array_equal(total, state["totals"]):
            raise StateMismatchError(
                f"the ring holds rows up to {total.tolist()} a lane, its index was saved at "
                f"{state['totals'].tolist()}: restore it whole",
                component="replay",
                expected=total.tolist(),
                got=state["totals"].tolist(),
            )
        self._totals = total
        self._origins = np.array(state["origins"], np.int64)
        self._newest_null = np.array(state["newest_null"], np.int64)
        self._closed = set(state["closed"].tolist())
        self.forget_laid()
        everything = np.arange(self.size, dtype=np.int64)
        for name in self.mirrors:
            self._set_mirror(name, everything, self.read(name, everything))
        if self._closed:
            self._mark_closed()

    def close(self) -> None:
        """Free the ring. Idempotent."""
        if self._ring is not None:
            self._ring.close()


def _fits(value: Any, place: Array) -> bool:
    return (
        type(value) is np.ndarray
        and value.dtype == place.dtype
        and value.shape == place.shape
        and bool(value.flags.c_contiguous)
    )
