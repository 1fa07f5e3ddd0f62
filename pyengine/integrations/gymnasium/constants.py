"""What is taken for a constant, and watched: attributes of classes, tables of known environments.

An environment may keep state in its class (`class Env: visits = {}`), where all instances share it.
It is not put back. Values that could change there are told apart by a digest: one that changes
while environments run is an obstacle, one that differs on the way back is a mismatch.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from pyengine.capture.rngs import rng_kind

_CONTAINERS = (list, dict, set, deque, bytearray, OrderedDict, Counter, defaultdict, np.ndarray)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic)
_LIBRARIES = frozenset(
    {"builtins", "abc", "typing", "gymnasium", "stable_baselines3", "sb3_contrib", "ale_py"}
)
"""Packages whose classes are known to hold no state."""
_IGNORED = frozenset({"metadata"})


class Watch:
    """What constants were when first seen; one for all walks of one stack."""

    def __init__(self) -> None:
        self.first: dict[str, str] = {}
        self._fixed: dict[int, tuple[Any, str]] = {}

    def fixed(self, value: Any) -> str:
        """Return the digest of a value that never changes; computed once."""
        if id(value) not in self._fixed:
            self._fixed[id(value)] = (value, digest(value))
        return self._fixed[id(value)][1]


def class_values(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of what might be state in the classes of `kind`."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in _LIBRARIES:
            continue
        for name, value in vars(base).items():
            is_special = name.startswith(("__", "_abc_")) or name in _IGNORED
            if not is_special and (type(value) in _CONTAINERS or rng_kind(value)):
                yield f"{base.__module__}:{base.__qualname__}.{name}", value


def digest(value: Any) -> str:
    """Return a digest of plain contents; other contents count by their type."""
    state = hashlib.blake2b(digest_size=16)
    _feed(state, value, set())
    return state.hexdigest()


def _feed(state: Any, value: Any, above: set[int]) -> None:
    state.update(f"<{type(value).__name__}".encode())
    if id(value) in above:
        return
    above = above | {id(value)}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        state.update(f"{value.shape}{value.dtype}".encode() + value.tobytes())
    elif isinstance(value, _PLAIN):
        state.update(repr(value).encode("utf-8", "surrogatepass"))
    elif isinstance(value, dict):
        for key, item in value.items():
            _feed(state, key, above)
            _feed(state, item, above)
    elif isinstance(value, (set, frozenset)):
        state.update("".join(sorted(map(digest, value))).encode())
    elif isinstance(value, bytearray):
        state.update(bytes(value))
    elif isinstance(value, (list, tuple, deque, np.ndarray)):
        for item in value:
            _feed(state, item, above)
