"""Buffers whose rows are not in a ring: what they hold is copied at each snapshot.

Two kinds: those of classes that are not known (CachedReplayBuffer moves rows between its parts,
users' own may do anything), and those that training empties before each snapshot.
"""

from __future__ import annotations

from typing import Any

from tianshou.data import Batch, ReplayBufferManager

from pyengine.capture.protocol import type_text
from pyengine.capture.tree import Encoder
from pyengine.errors import CaptureError
from pyengine.integrations.tianshou.buffers.state import parts_of

_NOT_STATE = frozenset(
    {
        # Saved apart, made by the constructor, or views of what the buffer itself holds.
        "_meta", "_random_state", "_indices", "options", "buffers", "main_buffer",
        "cached_buffers", "weight", "compute_reward_fn", "_original_meta", "_altered_indices",
    }
)  # fmt: skip


class CopiedRows:
    """Gives and takes what a buffer of any class holds.

    `notes` says what that costs and what is left out.
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self._names = [
            [name for name, value in vars(part).items() if _is_saved(name, value)]
            for part in parts_of(buffer)
        ]
        left = sorted(
            {
                name
                for part, names in zip(parts_of(buffer), self._names, strict=True)
                for name in vars(part).keys() - set(names) - _NOT_STATE
            }
        )
        self.notes = (
            (f"{type_text(buffer)}: NOT saved, no plain values: {', '.join(left)}",) if left else ()
        )

    def get_state(self) -> dict[str, Any]:
        """Return arrays, with their keys, and plain values of the buffer and of its parts."""
        buffer = self._buffer
        if hasattr(buffer, "_restore_cache"):
            buffer._restore_cache()
        has_rows = len(buffer) > 0
        return {
            "rows": _tree(buffer._meta) if has_rows else None,
            "size": int(buffer.maxsize),
            "parts": [
                {name: vars(part)[name] for name in names}
                for part, names in zip(parts_of(buffer), self._names, strict=True)
            ],
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Refuse rows of a buffer of another size."""
        if state["size"] != self._buffer.maxsize or len(state["parts"]) != len(self._names):
            raise ValueError(
                f"a buffer of {state['size']} rows in {len(state['parts'])} parts, here are "
                f"{self._buffer.maxsize} rows in {len(self._names)} parts"
            )

    def set_state(self, state: dict[str, Any]) -> None:
        """Put it back, as new arrays."""
        buffer = self._buffer
        if hasattr(buffer, "_restore_cache"):
            buffer._restore_cache()
        for part, saved in zip(parts_of(buffer), state["parts"], strict=True):
            vars(part).update(saved)
        if state["rows"] is None:
            return
        buffer.__dict__["_meta"] = _batch(state["rows"])
        if isinstance(buffer, ReplayBufferManager):
            buffer._set_batch_for_children()


def _is_saved(name: str, value: Any) -> bool:
    if name in _NOT_STATE:
        return False
    try:
        Encoder(name).encode(value)
    except CaptureError:
        return False
    return True


def _tree(batch: Any) -> dict[str, Any]:
    return {
        key: {"batch": _tree(value)} if isinstance(value, Batch) else value
        for key, value in batch.items()
    }


def _batch(tree: dict[str, Any]) -> Any:
    batch = Batch()
    for key, value in tree.items():
        is_batch = isinstance(value, dict)
        batch.__dict__[key] = _batch(value["batch"]) if is_batch else value
    return batch
