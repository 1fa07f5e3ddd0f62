"""Marks: values that stand for a row's own without changing the row.

Rows of a ring never change once added. Where Stable-Baselines3 writes into the `dones` or
`timeouts` of a row that it has already stored (to close an episode that will not go on), the new
value is kept here and laid over what a gather returns. There are few: one a lane and restart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ImmutableFieldError

MAX_MARKS = 4096
"""Marks of one field. More means that somebody rewrites rows, which a ring is not for."""


class Marks:
    """Marked refs of one field, sorted, and their values. False while there are none."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._refs = np.empty(0, np.int64)
        self._values = np.empty(0, np.float32)

    def __len__(self) -> int:
        return len(self._refs)

    def set(self, refs: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Lay `values` over rows `refs`, the last of equal refs winning; ImmutableFieldError."""
        latest = dict(zip(self._refs.tolist(), self._values.tolist(), strict=True))
        latest.update(zip(refs.tolist(), values.tolist(), strict=True))
        if len(latest) > MAX_MARKS:
            raise ImmutableFieldError(
                f"{self._field}: rows of an adopted replay buffer do not change; up to {MAX_MARKS} "
                f"may be marked as done or timed out, this would be {len(latest)}",
                field=self._field,
                expected=f"at most {MAX_MARKS} marked rows",
                got=len(latest),
            )
        order = sorted(latest)
        self._refs = np.array(order, np.int64)
        self._values = np.array([latest[ref] for ref in order], np.float32)

    def apply(self, refs: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Put the marked values into `values`, which were gathered from `refs` (same shape)."""
        if not len(self._refs):
            return
        places = np.searchsorted(self._refs, refs).clip(max=len(self._refs) - 1)
        found = self._refs[places] == refs
        values[found] = self._values[places[found]]

    def drop_before(self, ref: int) -> None:
        """Forget marks of rows older than `ref`."""
        kept = self._refs >= ref
        self._refs, self._values = self._refs[kept], self._values[kept]

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return refs and values."""
        return {"refs": self._refs, "values": self._values}

    def set_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Take back what `get_state` gave."""
        self._refs = np.array(state["refs"], np.int64)
        self._values = np.array(state["values"], np.float32)
