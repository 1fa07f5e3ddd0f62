"""Replay buffers of classes that are not known: everything they hold is copied at each snapshot.

Subclasses and users' own may rewrite rows in ways that a ring cannot follow. Their arrays and plain
values are saved whole and come back in place.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer

from pyengine.capture.protocol import type_text
from pyengine.errors import StateMismatchError

_NOT_STATE = ("env", "device", "observation_space", "action_space")
"""Given by whoever made the buffer."""

_SCALARS = (bool, int, float, complex, str, bytes, np.generic, enum.Enum)
_LEAVES = (*_SCALARS, np.ndarray, torch.Tensor, np.dtype, range, type(None))


class CopiedBuffer:
    """Gives and takes what a buffer of any class holds.

    `notes` says what that costs and what is left out. The arrays of `get_state` are the live ones.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        excluded = set(_NOT_STATE)
        if not getattr(buffer, "copy_info_dict", True):
            excluded.add("infos")  # HerReplayBuffer makes them and leaves them empty
        held = {name: value for name, value in vars(buffer).items() if name not in excluded}
        self._names = [name for name, value in held.items() if _is_plain(value)]
        name = type_text(buffer)
        size = sum(_array_bytes(held[name]) for name in self._names)
        self.notes: tuple[str, ...] = (
            f"{name} is not a class whose rows can live in a ring: up to {size} bytes "
            f"({size / 2**20:.1f} MiB) are copied at every snapshot",
        )
        left_out = sorted(held.keys() - set(self._names))
        if left_out:
            self.notes += (f"{name}: NOT saved, no plain values: {', '.join(left_out)}",)

    def get_state(self) -> dict[str, Any]:
        """Return arrays and plain values by attribute."""
        held = vars(self._buffer)
        return {name: held[name] for name in self._names if name in held}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise StateMismatchError where an array has another shape; change nothing."""
        for name in ("buffer_size", "n_envs"):
            here, got = getattr(self._buffer, name), state[name]
            if here != got:
                raise _mismatch(name, here, got)
        for name, saved in state.items():
            _check_shapes(name, getattr(self._buffer, name, None), saved)

    def set_state(self, state: dict[str, Any]) -> None:
        """Put it back: arrays in place, the rest as new values. Raises as `check_state` does."""
        self.check_state(state)
        for name, saved in state.items():
            live = getattr(self._buffer, name, None)
            setattr(self._buffer, name, _put(live, saved))


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, _LEAVES):
        return True
    if depth > 20:
        return False
    if type(value) is dict:
        keys = all(isinstance(key, _SCALARS) for key in value)
        return keys and all(_is_plain(item, depth + 1) for item in value.values())
    if type(value) in (list, tuple, set, frozenset, deque):
        return all(_is_plain(item, depth + 1) for item in value)
    return False


def _check_shapes(name: str, live: Any, saved: Any) -> None:
    if isinstance(live, Mapping) and isinstance(saved, Mapping):
        for key in live.keys() & saved.keys():
            _check_shapes(f"{name}/{key}", live[key], saved[key])
    elif isinstance(live, np.ndarray):
        here = f"{live.dtype}{list(live.shape)}"
        got = type(saved).__name__
        if isinstance(saved, np.ndarray):
            got = f"{saved.dtype}{list(saved.shape)}"
        if here != got:
            raise _mismatch(name, here, got)


def _mismatch(name: str, here: Any, got: Any) -> StateMismatchError:
    return StateMismatchError(
        f"the replay buffer's {name} is {here}, the snapshot's is {got}; make the model as it was "
        "when the snapshot was taken",
        component="replay",
        expected=here,
        got=got,
    )


def _array_bytes(value: Any) -> int:
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(map(_array_bytes, value.values()))
    if isinstance(value, (list, tuple, deque)):
        return sum(map(_array_bytes, value))
    return 0


def _put(live: Any, saved: Any) -> Any:
    """Write saved arrays into live ones of their shape; return what to keep."""
    if isinstance(live, np.ndarray):
        live[...] = saved
        return live
    if isinstance(live, dict) and isinstance(saved, dict) and live.keys() == saved.keys():
        for key, item in saved.items():
            live[key] = _put(live[key], item)
        return live
    return saved
