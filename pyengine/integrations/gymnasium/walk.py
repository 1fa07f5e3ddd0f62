"""A walk over live environments: what holds state, and what that state is.

A walk follows attributes from one root. What has an identity and stays where it is (environments,
wrappers, spaces, simulators, functions) becomes a node; the tree lists the nodes with the paths
that lead to them, and values refer to nodes by number. Everything else is a value: copied here,
made anew on the way back (see values.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gymnasium import spaces

from pyengine.capture.protocol import name_with_article
from pyengine.capture.rngs import rng_kind
from pyengine.integrations.gymnasium import nodes
from pyengine.integrations.gymnasium.classes import attributes, is_python_class
from pyengine.integrations.gymnasium.constants import Watch, class_values, digest
from pyengine.integrations.gymnasium.rules import Rules, named
from pyengine.integrations.gymnasium.simulators import ObstacleError
from pyengine.integrations.gymnasium.values import Conversion

LEFT = "left"
"""How a node is saved whose object stays as it is."""

_MAX_PATHS = 8


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
    left: dict[str, str] = field(default_factory=dict)
    """Attributes that are left as they are, and why; under "" the object itself."""

    def saved(self) -> dict[str, Any]:
        """Return the node as part of the tree."""
        parts = {"type": self.name, "paths": list(self.paths), "how": self.how}
        return {**parts, "held": self.held, "state": self.state, "left": self.left}


class Walk(Conversion):
    """One walk from `root`. `obstacles` tell what could not be saved, and where."""

    def __init__(self, root: Any, rules: Rules, watch: Watch) -> None:
        """Start at `root`; `watch` tells, or learns, what constants were at first."""
        super().__init__()
        self.rules = rules
        self.constants: dict[str, str] = {}
        self._watched = watch
        self.nodes: list[Node] = []
        self._numbers: dict[int, int] = {}
        self._node(root, type(root).__name__)

    def tree(self) -> dict[str, Any]:
        """Return everything that was found."""
        found = [node.saved() for node in self.nodes]
        return {"format": 1, "nodes": found, "constants": dict(self.constants)}

    def _is_node(self, value: Any) -> bool:
        if id(value) in self._numbers or nodes.is_code(value):
            return True
        if isinstance(value, self.rules.followed) or self.rules.adapter(value) is not None:
            return True
        return self.rules.functions(value) is not None

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
        before = len(self.obstacles)
        self._fill_whole(node, path)
        if self.rules.is_partial and len(self.obstacles) > before:
            node.how, node.state, node.held = LEFT, None, {}
            node.left[""] = self._taken_back(before)

    def _taken_back(self, before: int) -> str:
        """Take obstacles back, and return them as one text."""
        found = "; ".join(self.obstacles[before:])
        del self.obstacles[before:]
        return found

    def _fill_whole(self, node: Node, path: str) -> None:
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
        self._watch(node)
        functions = self.rules.functions(value)
        if functions is not None:
            node.how = "methods"
            try:
                node.state = functions[0]()
            except Exception as error:  # code of the user's: whatever it raises is an obstacle
                self._obstacle(path, f"get_state() raised {type(error).__name__}: {error}")
            beside = named(self.rules.beside_methods, value)
            self._attributes(node, path, lambda name, _: name in beside)
        elif not is_python_class(type(value)):
            self._obstacle(path, f"{name_with_article(value)} is written in C: it may hide state")
        elif isinstance(value, spaces.Space) and type(value).__module__.startswith("gymnasium."):
            node.state = repr(value)
            self._attributes(node, path, _is_of_space)
        else:
            self._attributes(node, path, lambda name, item: True)

    def _watch(self, node: Node) -> None:
        for name, value in class_values(type(node.value)):
            if name in self.constants:
                continue
            before = len(self.obstacles)
            found = self.constants[name] = digest(value)
            if rng_kind(value) is not None:
                self._obstacle(name, "a generator that belongs to a class")
            elif self._watched.first.setdefault(name, found) != found:
                self._obstacle(name, "an attribute of a class that changes")
            if self.rules.is_partial and len(self.obstacles) > before:
                del self.constants[name]
                node.left[name] = self._taken_back(before)

    def _attributes(self, node: Node, path: str, chosen: Callable[[str, Any], bool]) -> None:
        for name, item in attributes(node.value).items():
            if chosen(name, item):
                self._attribute(node, name, item, f"{path}.{name}")

    def _attribute(self, node: Node, name: str, item: Any, path: str) -> None:
        rules, value = self.rules, node.value
        if self.is_skipped(value, name, item):
            return
        if name in named(rules.fixed, value):
            self.constants[path] = self._watched.fixed(item)
            return
        for kind, settled in rules.settled.items():
            if isinstance(value, kind) and name in settled:
                node.held[name] = settled[name]
                return
        if name in named(rules.clocks, value):
            node.held[name] = {"@": "clock", "v": time.perf_counter() - item}
            return
        before, known = len(self.obstacles), len(self._made)
        converted = self.value(item, path)
        if len(self.obstacles) > before and name in named(rules.outputs, value):
            del self.obstacles[before:]
        elif len(self.obstacles) > before and rules.is_partial:
            node.left[name] = self._taken_back(before)
            for number in list(self._made)[known:]:  # parts of it are missing in some of these
                del self._made[number]
        else:
            node.held[name] = converted

    def is_skipped(self, owner: Any, name: str, item: Any) -> bool:
        """Return whether an attribute is no part of the state."""
        return name in named(self.rules.skipped_names, owner) or self.rules.is_skipped(item)


def left_out(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a state leaves out, and why; states of workers and chains in it included."""
    for node in tree["nodes"]:
        yield from node["left"].values()
        inner = node["state"] if isinstance(node["state"], dict) else {}
        for number, stack in enumerate(inner.get("stacks", ())):
            yield from (f"{node['paths'][0]}[{number}] {text}" for text in left_out(stack))


def _is_of_space(name: str, item: Any) -> bool:
    if name == "_np_random" or isinstance(item, spaces.Space):
        return True
    parts: Iterable[Any] = item.values() if isinstance(item, dict) else ()
    parts = item if isinstance(item, (list, tuple)) else parts
    return any(isinstance(part, spaces.Space) for part in parts)
