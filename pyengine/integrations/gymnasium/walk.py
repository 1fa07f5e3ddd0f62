"""From live environments to an independent tree of plain values.

A walk follows attributes from one root. What has an identity and stays where it is (environments,
wrappers, spaces, simulators, functions) becomes a node; the tree lists the nodes with all paths
that lead to them, and attributes refer to nodes by number. Everything else is a value: copied here,
made anew on the way back. The tree holds plain values, lists, dicts and arrays; a dict with the key
"@" is one of

    {"@": node, "v": number}                        a node
    {"@": array, ...}                               see arrays.py
    {"@": dict | odict | counter | defaultdict, "v": pairs, ...}
    {"@": tuple | set | frozenset | deque, "v": items, ...}
    {"@": dataclass | namedtuple, "type", "v": fields}
    {"@": method, "v": object, "name"}   {"@": partial, "v": [function, arguments, keywords]}
    {"@": process_rng, "v": name}   {"@": clock, "v": seconds since then}
"""

from __future__ import annotations

import enum
import inspect
import random
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from pyengine.capture.protocol import find_type, type_name
from pyengine.capture.rngs import make_rng, rng_kind, rng_state
from pyengine.capture.tree import FACTORIES
from pyengine.integrations.gymnasium import nodes
from pyengine.integrations.gymnasium.arrays import ArrayCopies, UnownedMemoryError
from pyengine.integrations.gymnasium.classes import attributes, is_python_class
from pyengine.integrations.gymnasium.records import is_record, record_fields, record_kind
from pyengine.integrations.gymnasium.rules import Rules, named
from pyengine.integrations.gymnasium.simulators import ObstacleError

_PLAIN = (type(None), bool, int, float, complex, str, bytes, range)
_MAPS = {OrderedDict: "odict", Counter: "counter", defaultdict: "defaultdict"}
_MAX_PATHS = 8


def process_rngs() -> dict[str, Any]:
    """Return the generators of the process, which an engine saves by itself."""
    python: Any = random.random
    return {"python": python.__self__, "numpy": np.random.mtrand._rand}


@dataclass(slots=True, eq=False)
class Node:
    """One object that stays where it is, and what it holds now."""

    value: Any
    name: str
    paths: list[str]
    how: str = "attributes"
    held: dict[str, Any] = field(default_factory=dict)
    """Attributes that are part of the state, converted."""
    state: Any = None

    def saved(self) -> dict[str, Any]:
        """Return the node as part of the tree."""
        parts = {"type": self.name, "paths": list(self.paths), "how": self.how}
        return {**parts, "held": self.held, "state": self.state}


class Walk:
    """One walk from `root`. `obstacles` tell what could not be saved, and where."""

    def __init__(self, root: Any, rules: Rules) -> None:
        self.rules = rules
        self.nodes: list[Node] = []
        self.obstacles: list[str] = []
        self._arrays = ArrayCopies()
        self._numbers: dict[int, int] = {}
        self._made: dict[int, tuple[Any, Any]] = {}
        self._process = {id(rng): name for name, rng in process_rngs().items()}
        self._node(root, type(root).__name__)

    def tree(self) -> dict[str, Any]:
        """Return everything that was found."""
        return {"format": 1, "nodes": [node.saved() for node in self.nodes]}

    # --- nodes ------------------------------------------------------------------------------

    def _node(self, value: Any, path: str) -> dict[str, Any]:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.nodes)
            node = Node(value, nodes.name_of(value), [path])
            self.nodes.append(node)
            self._fill(node, path)
        elif len(self.nodes[number].paths) < _MAX_PATHS:
            self.nodes[number].paths.append(path)
        return {"@": "node", "v": number}

    def _fill(self, node: Node, path: str) -> None:
        value = node.value
        adapter = self.rules.adapter(value)
        if adapter is not None:
            node.how = adapter.name
            try:
                node.state = adapter.get(value)
            except ObstacleError as error:
                self.obstacles += [f"{path}: {why}" for why in error.args]
            self._attributes(node, path, lambda name, _: name in adapter.held)
        elif nodes.is_code(value):
            node.how = "code"
            hidden = nodes.hidden_state(value)
            if hidden is not None:
                self._obstacle(path, hidden)
            for name, item in nodes.closure(value).items():
                node.held[name] = self.value(item, f"{path}<{name}>")
        else:
            self._fill_object(node, path)

    def _fill_object(self, node: Node, path: str) -> None:
        value = node.value
        if has_state_methods(value):
            node.how = "methods"
            node.state = value.get_state()
            beside = named(self.rules.beside_methods, value)
            self._attributes(node, path, lambda name, _: name in beside)
        elif not is_python_class(type(value)):
            self._obstacle(path, f"a {_type(value)} is written in C and may hold more than it shows")
        elif isinstance(value, spaces.Space) and type(value).__module__.startswith("gymnasium."):
            node.state = repr(value)
            self._attributes(node, path, _is_of_space)
        else:
            self._attributes(node, path, lambda name, item: True)

    def _attributes(self, node: Node, path: str, chosen: Callable[[str, Any], bool]) -> None:
        for name, item in attributes(node.value).items():
            if chosen(name, item):
                self._attribute(node, name, item, f"{path}.{name}")

    def _attribute(self, node: Node, name: str, item: Any, path: str) -> None:
        rules, value = self.rules, node.value
        if self.is_skipped(value, name, item):
            return
        for kind, settled in rules.settled.items():
            if isinstance(value, kind) and name in settled:
                node.held[name] = settled[name]
                return
        if name in named(rules.clocks, value):
            node.held[name] = {"@": "clock", "v": time.perf_counter() - item}
            return
        before = len(self.obstacles)
        converted = self.value(item, path)
        if len(self.obstacles) > before and name in named(rules.outputs, value):
            del self.obstacles[before:]
        else:
            node.held[name] = converted

    def is_skipped(self, owner: Any, name: str, item: Any) -> bool:
        """Return whether an attribute is no part of the state."""
        return name in named(self.rules.skipped_names, owner) or self.rules.is_skipped(item)

    # --- values -----------------------------------------------------------------------------

    def value(self, value: Any, path: str) -> Any:
        """Return `value` as an independent part of the tree."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, (np.generic, np.dtype)) and not getattr(value, "hasobject", False):
            return value
        if isinstance(value, enum.Enum):
            known = find_type(type_name(value)) is kind
            return value if known else self._obstacle(path, f"a {_type(value)} of a local class")
        if id(value) in self._numbers or self._is_node(value):
            return self._node(value, path)
        if id(value) in self._made:
            return self._made[id(value)][1]
        made = self._convert(value, path)
        self._made[id(value)] = (value, made)
        return made

    def _is_node(self, value: Any) -> bool:
        if self.rules.adapter(value) is not None or nodes.is_code(value):
            return True
        if isinstance(value, self.rules.followed):
            return True
        return rng_kind(value) is None and has_state_methods(value)

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
            fields = self._fields(record_fields(value), path)
            return {"@": record_kind(value), "type": type_name(value), "v": fields}
        if nodes.is_method(value):
            owner = self.value(value.__self__, f"{path}.__self__")
            return {"@": "method", "v": owner, "name": value.__func__.__name__}
        if nodes.is_partial(value):
            parts = [value.func, value.args, value.keywords]
            return {"@": "partial", "v": [self.value(part, path) for part in parts]}
        return self._obstacle(path, f"a {_type(value)} cannot be saved")

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
        return self._obstacle(path, f"a {_type(key)} cannot be saved as a key")

    def _fields(self, value: dict[str, Any], path: str) -> dict[str, Any]:
        return {name: self.value(item, f"{path}[{name!r}]") for name, item in value.items()}

    def _obstacle(self, path: str, what: str) -> None:
        self.obstacles.append(f"{path}: {what}")


def has_state_methods(value: Any) -> bool:
    """Return whether the class of `value` has get_state() and set_state(state)."""
    kind = type(value)
    get, put = getattr(kind, "get_state", None), getattr(kind, "set_state", None)
    if not (inspect.isfunction(get) and inspect.isfunction(put)):
        return False
    return _takes(get, 1) and _takes(put, 2)


def _takes(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _is_of_space(name: str, item: Any) -> bool:
    if name == "_np_random" or isinstance(item, spaces.Space):
        return True
    parts: Iterable[Any] = item.values() if isinstance(item, dict) else ()
    parts = item if isinstance(item, (list, tuple)) else parts
    return any(isinstance(part, spaces.Space) for part in parts)


def _type(value: Any) -> str:
    return type_name(value).replace(":", ".").removeprefix("builtins.")
