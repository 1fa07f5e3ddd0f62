"""From a saved tree back into live environments.

Planning builds every value, finds the live object of every node and raises StateMismatchError
where something does not fit; nothing changes. Applying sets attributes, then simulators, then what
objects take by their own methods, outermost first, and generators last of all.
"""

from __future__ import annotations

import functools
import time
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from pyengine.capture.rngs import rng_kind, rng_state, set_rng_state
from pyengine.capture.tree import FACTORIES
from pyengine.errors import StateMismatchError
from pyengine.integrations.gymnasium import nodes
from pyengine.integrations.gymnasium.arrays import ArrayRebuilds
from pyengine.integrations.gymnasium.classes import attributes, replace_attributes
from pyengine.integrations.gymnasium.records import find_record_type, make_record
from pyengine.integrations.gymnasium.values import process_rngs
from pyengine.integrations.gymnasium.walk import LEFT, Node, Walk

_MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError)
_MAPS: dict[str, Callable[[], Any]] = {"dict": dict, "odict": OrderedDict, "counter": Counter}
_ITEMS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def mismatch(what: str, expected: Any, got: Any, component: str) -> StateMismatchError:
    """Return the error for a state that does not fit the live environments."""
    text = f"{component!r}: {what} (here: {expected}, in the snapshot: {got})"
    return StateMismatchError(text, component=component, expected=expected, got=got)


class Rebuilds:
    """Builds values; `live` holds the objects of the nodes by number."""

    def __init__(self, live: list[Any]) -> None:
        self._live = live
        self._arrays = ArrayRebuilds()
        self._made: dict[int, tuple[Any, Any]] = {}

    def value(self, saved: Any) -> Any:
        """Return the value; one of _MALFORMED where the tree is none that Walk makes."""
        kind = type(saved)
        if kind not in (dict, list, np.ndarray):
            return saved
        if id(saved) in self._made:
            return self._made[id(saved)][1]
        if kind is np.ndarray:
            return self._keep(saved, self._arrays.plain(saved))
        if kind is list:
            made = self._keep(saved, [])
            made.extend(map(self.value, saved))
            return made
        if "@" not in saved:
            made = self._keep(saved, {})
            made.update((name, self.value(item)) for name, item in saved.items())
            return made
        return self._tagged(saved)

    def _keep(self, saved: Any, made: Any) -> Any:
        self._made[id(saved)] = (saved, made)
        return made

    def _tagged(self, saved: dict[str, Any]) -> Any:
        tag = saved["@"]
        if tag == "node":
            return self._live[saved["v"]]
        if tag == "array":
            return self._keep(saved, self._arrays.rebuild(saved))
        if tag == "process_rng":
            return process_rngs()[saved["v"]]
        if tag == "clock":
            return time.perf_counter() - saved["v"]
        if tag in _MAPS or tag == "defaultdict":
            return self._map(saved, tag)
        if tag == "deque":
            made = self._keep(saved, deque(maxlen=saved["maxlen"]))
            made.extend(map(self.value, saved["v"]))
            return made
        if tag in _ITEMS:
            return self._keep(saved, _ITEMS[tag]([self.value(item) for item in saved["v"]]))
        return self._keep(saved, self._other(saved, tag))

    def _map(self, saved: dict[str, Any], tag: str) -> Any:
        new = defaultdict(FACTORIES[saved["factory"]]) if tag == "defaultdict" else _MAPS[tag]()
        made = self._keep(saved, new)
        for key, item in saved["v"]:
            made[self.value(key)] = self.value(item)
        return made

    def _other(self, saved: dict[str, Any], tag: str) -> Any:
        if tag == "objects":
            items = np.empty(len(saved["v"]), dtype=object)
            for i, item in enumerate(saved["v"]):
                items[i] = self.value(item)
            return items.reshape(saved["shape"])
        if tag in ("dataclass", "namedtuple"):
            return self._record(saved, find_record_type(tag, saved["type"]), tag)
        if tag == "method":
            method = getattr(self.value(saved["v"]), saved["name"])
            if not isinstance(method, types.MethodType):
                raise ValueError(f"{saved['name']} is no method")
            return method
        if tag == "partial":
            function, arguments, keywords = map(self.value, saved["v"])
            return functools.partial(function, *arguments, **keywords)
        raise ValueError(f"unknown kind of value {tag!r}")

    def _record(self, saved: dict[str, Any], kind: Any, tag: str) -> Any:
        fields = saved["v"]
        if tag == "namedtuple":
            return tuple.__new__(kind, [self.value(fields[name]) for name in kind._fields])
        made = self._keep(saved, make_record(kind))
        for name, item in fields.items():
            object.__setattr__(made, name, self.value(item))
        return made


def _settle(value: Any, new: dict[str, Any], states: dict[str, Any]) -> None:
    """Set attributes again after set_state; generators keep their identity, which may be shared."""
    for name, item in new.items():
        live = attributes(value).get(name)
        if name in states and rng_kind(live) == rng_kind(item):
            set_rng_state(live, states[name])
        else:
            replace_attributes(value, {name: item}, set())


class Plan:
    """One state for one stack: made without a change, then applied once."""

    def __init__(self, walk: Walk, tree: Any, component: str) -> None:
        self._rules = walk.rules
        self._component = component
        self._last: list[Callable[[], Any]] = []
        self._simulators: list[tuple[int, Callable[[], Any]]] = []
        self._methods: list[Callable[[], Any]] = []
        self._actions: list[Callable[[], Any]] = []
        try:
            if tree["format"] != 1:
                raise self._error("another format", 1, tree["format"])
            for name, found in walk.constants.items():
                if tree["constants"].get(name, found) != found:
                    raise self._error(f"{name} differs", found, tree["constants"][name])
            live = self._match(walk.nodes, tree["nodes"])
            values = Rebuilds([node.value for node in live])
            for node, saved in zip(live, tree["nodes"], strict=True):
                self._plan(node, saved, values)
        except _MALFORMED as error:
            if isinstance(error, StateMismatchError):
                raise
            raise self._error(f"{type(error).__name__}: {error}", "a state", "none") from error

    def apply(self) -> None:
        """Put the state into the live objects."""
        for action in self._actions:
            action()
        for _, action in sorted(self._simulators, key=lambda ranked: ranked[0]):
            action()
        for action in (*self._methods, *self._last):
            action()

    def _error(self, what: str, expected: Any, got: Any) -> StateMismatchError:
        return mismatch(what, expected, got, self._component)

    def _match(self, here: list[Node], saved: list[Any]) -> list[Node]:
        """Find the live node of every saved one: it lies at one of the saved paths."""
        at = {path: node for node in here for path in node.paths}
        found = []
        for entry in saved:
            node = next((at[path] for path in entry["paths"] if path in at), None)
            is_same = node is not None and node.name == entry["type"]
            if node is None or not is_same or entry["how"] not in (node.how, LEFT):
                have = "nothing" if node is None else f"{node.name} ({node.how})"
                got = f"{entry['type']} ({entry['how']})"
                raise self._error(f"{entry['paths'][0]} is another object", have, got)
            found.append(node)
        if len(set(map(id, found))) != len(found):
            raise self._error("objects that are apart in the snapshot are one here", "one", "two")
        return found

    def _plan(self, node: Node, saved: dict[str, Any], values: Rebuilds) -> None:
        if saved["how"] == LEFT:
            return
        value, how, path = node.value, node.how, saved["paths"][0]
        new = {name: values.value(item) for name, item in saved["held"].items()}
        if how == "code":
            self._actions.append(lambda: nodes.set_closure(value, new))
            return
        if how == "methods":
            # Before, so that set_state may keep a reference; again after, as it may reset or draw.
            self._actions.append(lambda: replace_attributes(value, new, set()))
            functions = self._rules.functions(value)
            assert functions is not None
            put = functions[1]
            self._methods.append(lambda: put(saved["state"]))
            states = {name: rng_state(item) for name, item in new.items() if rng_kind(item)}
            self._last.append(lambda: _settle(value, new, states))
            return
        adapter = self._rules.adapter(value)
        if adapter is not None:
            try:
                adapter.check(value, saved["state"])
            except ValueError as error:
                raise self._error(f"{path}: {error}", node.name, saved["type"]) from error
            rank, state = adapter.rank, saved["state"]
            self._simulators.append((rank, lambda: adapter.set(value, state)))
            self._last.append(lambda: replace_attributes(value, new, set()))
            return
        if node.state != saved["state"]:
            raise self._error(f"{path} differs", node.state, saved["state"])
        kept = self._kept(value)
        gone = set(node.held) - set(new) - set(saved["left"]) - kept
        new = {name: item for name, item in new.items() if name not in kept}
        self._actions.append(lambda: replace_attributes(value, new, gone))

    def _kept(self, value: Any) -> set[str]:
        """Return attributes that stay as they are here, such as an open window."""
        return {name for name, item in attributes(value).items() if self._rules.is_skipped(item)}
