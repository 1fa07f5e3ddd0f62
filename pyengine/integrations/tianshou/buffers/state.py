"""What a buffer holds besides its rows, as objects for `engine.track`."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyengine.integrations.tianshou.buffers.layout import Layout
from pyengine.integrations.tianshou.buffers.meta import RingMeta
from pyengine.integrations.tianshou.buffers.rows import BufferRows
from pyengine.integrations.tianshou.buffers.trees import fill_tree, leaves_of

_CURSORS = ("_insertion_idx", "_size", "_ep_return", "_ep_len", "_ep_start_idx")
_ARRAYS = ("last_index", "_lengths")


def parts_of(buffer: Any) -> list[Any]:
    """Return a buffer and its sub-buffers, in order."""
    return [buffer, *vars(buffer).get("buffers", ())]


def cursors_of(part: Any) -> dict[str, Any]:
    """Return where a buffer writes next, and what it knows of the open episode."""
    held = vars(part)
    arrays = {name: np.array(held[name]) for name in _ARRAYS if name in held}
    return arrays | {name: held[name] for name in _CURSORS if name in held}


class Cursors:
    """Where each sub-buffer writes next, its open episode, and which rows are whose."""

    def __init__(self, buffer: Any, rows: BufferRows) -> None:
        self._buffer = buffer
        self._rows = rows

    def get_state(self) -> dict[str, Any]:
        """Return the cursors, the buffer's own first."""
        parts = [cursors_of(part) for part in parts_of(self._buffer)]
        return {"parts": parts, "rows": self._rows.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Put them back, after the ring."""
        self._rows.set_state(state["rows"])
        for part, saved in zip(parts_of(self._buffer), state["parts"], strict=True):
            vars(part).update(saved)
            if hasattr(part, "forget_altered"):
                part.forget_altered()


class Draws:
    """The generator of a buffer and those of its sub-buffers, which draws use."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def get_state(self) -> list[dict[str, Any]]:
        """Return their states, the buffer's own first."""
        return [part._random_state.get_state(legacy=False) for part in parts_of(self._buffer)]

    def set_state(self, state: list[dict[str, Any]]) -> None:
        """Put them back."""
        for part, saved in zip(parts_of(self._buffer), state, strict=True):
            part._random_state.set_state(saved)


class Priorities:
    """The weights of a prioritised buffer: the leaves of its tree, bounds, and exponents.

    An inner node of the tree is always the sum of the two below it, left plus right, so that a tree
    made from the leaves is the one that was, bit for bit.
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def get_state(self) -> dict[str, Any]:
        """Return them; the leaves are the live array."""
        buffer = self._buffer
        return {
            "leaves": leaves_of(buffer.weight),
            "max": buffer._max_prio,
            "min": buffer._min_prio,
            "beta": [vars(part).get("_beta") for part in parts_of(buffer)],
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Refuse leaves for another number of rows."""
        here, got = len(leaves_of(self._buffer.weight)), len(state["leaves"])
        if here != got:
            raise ValueError(f"weights of {got} rows, here are {here}")

    def set_state(self, state: dict[str, Any]) -> None:
        """Put them back."""
        buffer = self._buffer
        fill_tree(buffer.weight, state["leaves"])
        buffer._max_prio, buffer._min_prio = state["max"], state["min"]
        for part, beta in zip(parts_of(buffer), state["beta"], strict=True):
            if beta is not None:
                part._beta = beta


class Extras:
    """Values of rows that are no numbers of fixed shape, or turned up late: copied whole."""

    def __init__(self, meta: RingMeta) -> None:
        self._meta = meta

    def get_state(self) -> list[dict[str, Any]]:
        """Return each array with its keys."""
        found = self._meta.extras.items()
        return [{"path": list(path), "array": array} for path, array in found]

    def set_state(self, state: list[dict[str, Any]]) -> None:
        """Put them back; those that the snapshot lacks are emptied."""
        saved = {tuple(one["path"]): one["array"] for one in state}
        for path, array in self._meta.extras.items():
            if path not in saved:
                array[...] = None if array.dtype == np.dtype(object) else 0
        for path, array in saved.items():
            self._meta.put_extra(path, array)


class LayoutRecord:
    """What a row is, read before the rows by a run that resumes. Never changes."""

    def __init__(self, layout: Layout) -> None:
        self._record = layout.to_record()

    def get_state(self) -> dict[str, Any]:
        """Return the record."""
        return self._record

    def set_state(self, state: dict[str, Any]) -> None:
        """Do nothing: the ring was made by it."""
