"""StorageRows: the rows of a RingStorage, in a ring, by TorchRL's indices.

TorchRL addresses a row by (step, lane): the step counts from 0 to the storage's length and wraps
around. The row id that step 0 began with (`origin`) turns steps into row ids, and a storage that is
emptied moves it to the newest row: ids are never reused.

Fields that may change are mutable fields of the ring. Where all may, the ring holds a row for every
step from the beginning, and writes go anywhere. Of append fields nothing changes but what a restore
without environments has to close: the last row of each open episode is noted, and its end flags
read as true.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine.errors import ImmutableFieldError, StateMismatchError
from pyengine.format.schema import Field, Schema
from pyengine.integrations.torchrl.layout import Layout
from pyengine.replay.ring import ReplayBuffer

Steps = NDArray[np.int64]

PLACE = "pyengine.place"
"""The append field of rings whose other fields may all change."""

READ_ROWS = 65536


class StorageRows:
    """Owns the ring of one storage: `steps` rows in each lane. Not thread-safe.

    `mutable` names the fields that may change, all of them with None.
    """

    def __init__(
        self,
        layout: Layout,
        steps: int,
        mutable: Collection[str] | None,
        memory_limit: int | None,
    ) -> None:
        self.layout = layout
        self.steps = steps
        self.lanes = layout.lanes
        self.is_mutable = mutable is None
        self.mutable = frozenset(layout.leaves if mutable is None else mutable)
        fields = layout.fields(set(self.mutable))
        if self.is_mutable:
            fields = {PLACE: Field((), "uint8"), **fields}
        self.ring = ReplayBuffer(
            Schema(fields),
            steps * self.lanes,
            num_envs=self.lanes,
            seed=0,
            memory_limit=memory_limit,
        )
        self._origin = 0
        self._written = 0
        self._closed: Steps = np.empty(0, np.int64)
        self._end_fields: tuple[str, ...] = ()
        if self.is_mutable:
            self.ring.extend({PLACE: np.zeros((steps, self.lanes), np.uint8)})

    @property
    def total(self) -> int:
        """Rows that each lane was ever given."""
        control = self.ring.control
        return 0 if control is None else control.total_count(0)

    @property
    def length(self) -> int:
        """Steps that hold rows."""
        return self._written if self.is_mutable else min(self.total - self._origin, self.steps)

    @property
    def position(self) -> int:
        """The step that the next row that is appended goes to."""
        return (self.total - self._origin) % self.steps

    def append(self, values: Mapping[str, torch.Tensor], *, is_one: bool) -> None:
        """Append rows, values of shape (steps, lanes, *shape), or one without the first axis.

        Raises what the ring's `extend` does; nothing has changed then.
        """
        if is_one:
            self.ring.add(values)
        else:
            self.ring.extend(values)

    def write(self, steps: Steps, lanes: Steps, values: Mapping[str, torch.Tensor]) -> None:
        """Write values of shape (rows, *shape) over rows; ImmutableFieldError, or all is written.

        Of a row that comes several times the last values stay.
        """
        for name in values:
            self.check_mutable(name)
        # The ring does not say which of equal refs wins.
        _, last = np.unique((steps * self.lanes + lanes)[::-1], return_index=True)
        kept = np.sort(len(steps) - 1 - last)
        refs = self.refs(steps[kept], lanes[kept])
        index = torch.from_numpy(kept)
        self.ring.update(refs, **{name: value[index] for name, value in values.items()})

    def count_written(self, steps: int) -> None:
        """Say how many steps hold rows by now, where all fields may change."""
        self._written = steps

    def check_mutable(self, name: str) -> None:
        """Raise ImmutableFieldError where a field does not change once added."""
        if name not in self.mutable:
            raise FrozenFieldError(
                f"{name}: rows in a ring do not change once added; RingStorage(..., "
                f"mutable=[{name!r}]) lets this key change, mutable=True all of them (they are "
                "copied whole at each snapshot)",
                field=name,
                expected=f"one of {sorted(self.mutable)}",
                got=name,
            )

    def refs(self, steps: Steps, lanes: Steps) -> Steps:
        """Return the refs of rows (steps, lanes), which must hold a row each."""
        total, rows = self.total, self.total - self._origin
        if rows < self.steps:
            ids = steps + self._origin
        else:
            # The oldest row is at the head.
            ids = (steps - rows) % self.steps + (total - self.steps)
        refs: Steps = ids * self.lanes + lanes
        return refs

    def gather(self, refs: Steps, device: torch.device | None) -> dict[str, torch.Tensor]:
        """Return all fields of the rows `refs`, (rows, *shape) each, all of one instant."""
        values = self.ring.gather(refs, device="cpu").values_by_field
        self._close(refs, values)
        if device is None or device.type == "cpu":
            return values
        return {name: value.to(device) for name, value in values.items()}

    def read(self, name: str, refs: Steps) -> torch.Tensor:
        """Return one field of the rows `refs`, (rows, *shape)."""
        leaf = self.layout.leaves[name]
        values = torch.empty((len(refs), *leaf.shape), dtype=leaf.dtype)
        # In blocks: the ring is locked for others while one is read.
        for start in range(0, len(refs), READ_ROWS):
            block = slice(start, start + READ_ROWS)
            self.ring.gather(refs[block], out={name: values[block]})
        self._close(refs, {name: values})
        return values

    def close_open_episodes(self, step: int, end_fields: Collection[str]) -> None:
        """Let the rows of `step`, the newest one, end episodes: their `end_fields` read as true."""
        self._end_fields = tuple(end_fields)
        lanes = np.arange(self.lanes)
        newest = np.full(self.lanes, step, np.int64)
        mutable = [name for name in end_fields if name in self.mutable]
        for name in mutable:
            leaf = self.layout.leaves[name]
            ones = torch.ones((self.lanes, *leaf.shape), dtype=leaf.dtype)
            self.write(newest, lanes, {name: ones})
        if len(mutable) < len(self._end_fields):
            self._closed = np.union1d(self._closed, self.refs(newest, lanes))

    def _close(self, refs: Steps, values: dict[str, torch.Tensor]) -> None:
        if not len(self._closed):
            return
        found = np.isin(refs, self._closed)
        if found.any():
            index = torch.from_numpy(found)
            for name in self._end_fields:
                if name in values and name not in self.mutable:
                    values[name][index] = 1

    def clear(self) -> None:
        """Empty the storage. The rows stay in memory until as many new ones have come."""
        if self.is_mutable:
            self._written = 0
        else:
            self._origin = self.total

    def begin_at(self, position: int) -> None:
        """Empty the storage so that, once it is full, its oldest row is at `position`."""
        self._origin = self.total - position

    def get_state(self) -> dict[str, Any]:
        """Return what is not in the ring."""
        oldest = self.total - self.steps
        self._closed = self._closed[self._closed >= oldest * self.lanes]
        return {
            "total": self.total,
            "origin": self._origin,
            "written": self._written,
            "closed": self._closed,
            "end_fields": list(self._end_fields),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back, after the ring was restored."""
        if self.total != state["total"]:
            raise StateMismatchError(
                f"the ring holds {self.total} rows a lane, its index was saved at "
                f"{state['total']}: both come back together, or not at all",
                component="replay",
                expected=self.total,
                got=state["total"],
            )
        self._origin = state["origin"]
        self._written = state["written"]
        self._closed = np.array(state["closed"], np.int64)
        self._end_fields = tuple(state["end_fields"])


class FrozenFieldError(ImmutableFieldError, KeyError):
    """An ImmutableFieldError as TensorDict lets it through: it makes others of all but KeyError."""

    __str__ = Exception.__str__
