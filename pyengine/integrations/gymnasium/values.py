"""From live values to an independent tree: the values between the nodes of a walk.

The tree holds plain values, lists, dicts and arrays; a dict with the key "@" is one of

    {"@": node, "v": number}                        an object that stays where it is, see walk.py
    {"@": array, ...}                               see arrays.py
    {"@": objects, "shape", "v": items}             an array of Python objects
    {"@": dict | odict | counter | defaultdict, "v": pairs, ...}
    {"@": tuple | set | frozenset | deque, "v": items, ...}
    {"@": dataclass | namedtuple, "type", "v": fields}
    {"@": method, "v": object, "name"}   {"@": partial, "v": [function, arguments, keywords]}
    {"@": process_rng, "v": name}   {"@": clock, "v": seconds since then}
"""

from __future__ import annotations

import enum
import random
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np

from pyengine.capture.protocol import find_type, name_with_article, type_name
from pyengine.capture.rngs import make_rng, rng_kind, rng_state
from pyengine.capture.tree import FACTORIES
from pyengine.integrations.gymnasium import nodes
from pyengine.integrations.gymnasium.arrays import ArrayCopies, UnownedMemoryError
from pyengine.integrations.gymnasium.records import is_record, record_fields, record_kind

_PLAIN = (type(None), bool, int, float, complex, str, bytes, range)
_MAPS: dict[Any, str] = {OrderedDict: "odict", Counter: "counter", defaultdict: "defaultdict"}


def process_rngs() -> dict[str, Any]:
    """Return the generators of the process, which an engine saves by itself."""
    python: Any = random.random
    return {"python": python.__self__, "numpy": np.random.mtrand._rand}


class Conversion(ABC):
    """Converts values; what has an identity is left to `_node`. Each object is converted once."""

    def __init__(self) -> None:
        self.obstacles: list[str] = []
        self._arrays = ArrayCopies()
        self._made: dict[int, tuple[Any, Any]] = {}
        self._process = {id(rng): name for name, rng in process_rngs().items()}

    @abstractmethod
    def _is_node(self, value: Any) -> bool: ...

    @abstractmethod
    def _node(self, value: Any, path: str) -> dict[str, Any]: ...

    def value(self, value: Any, path: str) -> Any:
        """Return `value` as an independent part of the tree."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, (np.generic, np.dtype)) and not getattr(value, "hasobject", False):
            return value
        if isinstance(value, enum.Enum):
            known = find_type(type_name(value)) is kind
            what = f"{name_with_article(value)} of a local class"
            return value if known else self._obstacle(path, what)
        if self._is_node(value):
            return self._node(value, path)
        if id(value) in self._made:
            return self._made[id(value)][1]
        made = self._convert(value, path)
        self._made[id(value)] = (value, made)
        return made

    def _convert(self, value: Any, path: str) -> Any:
        kind = type(value)
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if rng_kind(value) is not None:
            if id(value) in self._process:
                return {"@": "process_rng", "v": self._process[id(value)]}
            return make_rng(rng_kind(value) or "", rng_state(value))
        if kind is dict or kind in _MAPS:
            return self._map(value, path)
        if kind is list:
            return self._list(value, path)
        if kind is bytearray:
            return bytearray(value)
        if kind in (tuple, set, frozenset, deque):
            return self._items(value, path)
        if is_record(value):
            return self._record(value, path)
        if nodes.is_method(value):
            owner = self.value(value.__self__, f"{path}.__self__")
            return {"@": "method", "v": owner, "name": value.__func__.__name__}
        if nodes.is_partial(value):
            parts = [value.func, value.args, value.keywords]
            return {"@": "partial", "v": [self.value(part, path) for part in parts]}
        return self._obstacle(path, f"{name_with_article(value)} cannot be saved")

    def _record(self, value: Any, path: str) -> Any:
        made: dict[str, Any] = {"@": record_kind(value), "type": type_name(value)}
        self._made[id(value)] = (value, made)
        made["v"] = self._fields(record_fields(value), path)
        return made

    def _array(self, value: Any, path: str) -> Any:
        try:
            saved = self._arrays.saved(value)
        except UnownedMemoryError as error:
            return self._obstacle(path, f"an array cannot be saved: {error}")
        if not value.dtype.hasobject:
            return saved
        items = [self.value(item, f"{path}[{i}]") for i, item in enumerate(value.ravel().tolist())]
        return {"@": "objects", "shape": list(value.shape), "v": items}

    def _list(self, value: list[Any], path: str) -> Any:
        made: list[Any] = []
        self._made[id(value)] = (value, made)
        if set(map(type, value)) <= {bool, int, float, str, type(None)}:
            made.extend(value)
        else:
            made.extend(self.value(item, f"{path}[{i}]") for i, item in enumerate(value))
        return made

    def _items(self, value: Any, path: str) -> Any:
        made: dict[str, Any] = {"@": type(value).__name__}
        self._made[id(value)] = (value, made)
        if isinstance(value, (set, frozenset)) and list(value) != list(type(value)(list(value))):
            return self._obstacle(path, "a set whose order would not come back")
        if type(value) is deque:
            made["maxlen"] = value.maxlen
        made["v"] = [self.value(item, f"{path}[{i}]") for i, item in enumerate(value)]
        return made

    def _map(self, value: Any, path: str) -> Any:
        kind = _MAPS.get(type(value))
        if kind is None and "@" not in value and all(type(key) is str for key in value):
            made: dict[str, Any] = {}
            self._made[id(value)] = (value, made)
            made.update(self._fields(value, path))
            return made
        made = {"@": kind or "dict"}
        self._made[id(value)] = (value, made)
        if isinstance(value, defaultdict):
            names = [name for name, known in FACTORIES.items() if known is value.default_factory]
            made["factory"] = names[0] if names else self._obstacle(path, "its default factory")
        made["v"] = [
            [self._key(key, path), self.value(item, f"{path}[{key!r}]")]
            for key, item in value.items()
        ]
        return made

    def _key(self, key: Any, path: str) -> Any:
        if type(key) is tuple:
            return {"@": "tuple", "v": [self._key(part, path) for part in key]}
        if type(key) in _PLAIN or isinstance(key, (np.generic, enum.Enum)):
            return self.value(key, path)
        return self._obstacle(path, f"{name_with_article(key)} cannot be saved as a key")

    def _fields(self, value: dict[str, Any], path: str) -> dict[str, Any]:
        return {name: self.value(item, f"{path}[{name!r}]") for name, item in value.items()}

    def _obstacle(self, path: str, what: str) -> Any:
        self.obstacles.append(f"{path}: {what}")
