"""What lies in the attributes of tracked objects and is state, yet in no snapshot.

A walk from each root: tracked modules (attributes that torch does not know), schedulers (their
optimizer), objects with methods of their own, and owners that a script shows (`watch`: an agent
that holds networks, optimizers, generators). Found are modules, optimizers, schedulers, scalers,
generators, normalisers, samplers, parameters and objects with methods for their state. Each must be
tracked, part of something tracked, or excluded by its path. A place that held a tracked object and
now holds another one is told apart: the object was replaced.

The walk is bounded (depth, number of nodes, length of containers), and says where it ended. It is
made again only when what a visited object holds is not what it held, by identity: that comparison
is what a snapshot pays (25 us for two networks of five layers and their owner, 2026-12-01). An
object that is tracked with methods of its own decides itself what its state is: of it only that is
told of which the state that it gave shows no trace.
"""

from __future__ import annotations

import random
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyengine.capture import held, sorts
from pyengine.capture.component import Captured, Component
from pyengine.capture.lazy_torch import is_tensor, is_torch_loaded
from pyengine.capture.protocol import name_with_article
from pyengine.errors import ReplacedObjectError, UncapturedStateError
from pyengine.events import warn_once

_DEPTH_MAX = 6
_NODES_MAX = 20_000
_TRACES_MAX = 10_000
_SHOWN = 4
_WARNINGS_MAX = 16


@dataclass(frozen=True, slots=True)
class Root:
    """Where a walk begins. `own` is the name of the component whose own methods decide what its
    state is, None for others; `is_owner` is for what a script shows without tracking it."""

    path: str
    value: Any
    own: str | None = None
    is_owner: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    value: Any
    sort: str
    root: Root


@dataclass(slots=True)
class _Walk:
    """One walk: what it found, and what each visited object held.

    No new object may take the id of one that was met: `gone` is filled when one of them ends, and
    only what takes no weak reference (lists, dicts, tuples) is kept alive.
    """

    found: list[_Found] = field(default_factory=list)
    visited: list[tuple[Callable[[], Any], list[int]]] = field(default_factory=list)
    gone: list[object] = field(default_factory=list)
    met: set[int] = field(default_factory=set)
    cut: dict[str, str] = field(default_factory=dict)
    """Where the walk ended early, and why."""
    _kept: list[Callable[[], Any]] = field(default_factory=list)

    def visit(self, value: Any, path: str, root: Root, depth: int) -> None:
        """Look at what `value` holds."""
        if id(value) in self.met:
            return
        if depth > _DEPTH_MAX or len(self.met) >= _NODES_MAX:
            why = f"it holds more than {_NODES_MAX} objects, or deeper than {_DEPTH_MAX} levels"
            self.cut.setdefault(root.path, why)
            return
        self.met.add(id(value))
        items = held.named(value)
        if items is None:
            self.cut[path] = "other threads change it all the time"
            items = []
        self.visited.append((self._hold(value), [id(item) for _, item in items]))
        self._kept += [self._hold(item) for _, item in items]
        found_before = len(self.found)
        for name, item in items:
            self._look_at(item, f"{path}.{name}", root, depth)
        if held.is_long(value) and (len(self.found) > found_before or held.has_parts(value)):
            self.cut[path] = (
                f"only the first {held.FIRST} items are looked at where there are more than "
                f"{held.ITEMS_MAX}"
            )

    def _hold(self, value: Any) -> Callable[[], Any]:
        try:
            return weakref.ref(value, self.gone.append)
        except TypeError:
            return lambda: value

    def is_as_it_was(self) -> bool:
        """Whether all that was visited holds what it held."""
        if self.gone:
            return False
        ids = held.ids
        try:
            return all(ids(visited()) == known for visited, known in self.visited)
        except RuntimeError:  # another thread changes something
            return False

    def _look_at(self, item: Any, path: str, root: Root, depth: int) -> None:
        sort = sorts.sort_of(item)
        if sort in sorts.STATE_SORTS:
            self.found.append(_Found(path, item, sort, root))
        if sort == sorts.SCHEDULER:
            self._look_at(item.optimizer, f"{path}.optimizer", root, depth)
        elif sort in (sorts.CONTAINER, sorts.OBJECT, sorts.MODULE, sorts.STATE, sorts.SAMPLER):
            # Modules lie in modules as deep as they like.
            self.visit(item, path, root, depth + (sort != sorts.MODULE))
        elif sort == sorts.SPACE and root.is_owner:
            self._look_at(getattr(item, "_np_random", None), f"{path}._np_random", root, depth)


class Reachable:
    """What was found from the roots so far; one per engine."""

    def __init__(self) -> None:
        self._walk: _Walk | None = None
        self._key: Any = None
        self._places: dict[str, tuple[str, str]] = {}
        """Where tracked objects were found: their names and sorts by path."""
        self._warned: set[str] = set()

    def check(
        self,
        roots: Sequence[Root],
        components: Mapping[str, Component],
        captured: Iterable[Captured],
        others: Mapping[str, Any],
        excluded: Collection[str],
    ) -> None:
        """Raise UncapturedStateError or ReplacedObjectError; nothing where nothing has changed.

        `captured` is what the components gave for this snapshot, `others` are tracked objects by
        name (rings among them), `excluded` names and paths that are left out on purpose.
        """
        key = (
            [(root.path, id(root.value)) for root in roots],
            [*components],
            [*others],
            [*map(id, others.values())],
            [*excluded],
        )
        walk = self._walk
        if walk is not None and key == self._key and walk.is_as_it_was():
            return
        walk = _Walk()
        for root in roots:
            walk.visit(root.value, root.path, root, 0)
        self._tell_cuts(walk)
        self._walk = None  # what raises is looked for again
        self._judge(walk, _Saved(components, list(captured), others), excluded)
        walk.found.clear()
        self._walk, self._key = walk, key

    def forget(self) -> None:
        """Let go of everything that was met."""
        self._walk = None
        self._places.clear()

    def _tell_cuts(self, walk: _Walk) -> None:
        for path, why in walk.cut.items():
            if len(self._warned) < _WARNINGS_MAX:
                warn_once(
                    self._warned,
                    path,
                    "the look for state that no snapshot holds ended early: %s: %s",
                    path,
                    why,
                )

    def _judge(self, walk: _Walk, saved: _Saved, excluded: Collection[str]) -> None:
        lost: dict[int, _Found] = {}
        """By identity, each where it is nearest to a root."""
        for found in sorted(walk.found, key=lambda found: found.path.count(".")):
            name = saved.name_of(found.value)
            if name is not None:
                self._places[found.path] = (name, found.sort)
            elif not _is_below(found.path, excluded) and not saved.holds(found):
                former = self._places.get(found.path)
                if former is not None and former[1] == found.sort:
                    raise _replaced(found, former[0])
                if not _is_below(found.path, {one.path for one in lost.values()}):
                    lost.setdefault(id(found.value), found)
        if lost:
            raise _uncaptured(list(lost.values()))


def _is_below(path: str, excluded: Collection[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[: end + 1]) in excluded for end in range(len(parts)))


class _Saved:
    """What one snapshot holds, to look things up in."""

    def __init__(
        self,
        components: Mapping[str, Component],
        captured: list[Captured],
        others: Mapping[str, Any],
    ) -> None:
        self._names = {id(value): name for name, value in others.items()}
        self._captured = {one.name: one for one in captured}
        self._kinds = {name: component.kind for name, component in components.items()}
        self._parts = set(_process_generators())
        for name, value in others.items():
            if self._kinds.get(name) == "module":
                self._parts.update(id(module) for module in value.modules())
            elif self._kinds.get(name) == "counters":
                inner = _Walk()
                inner.visit(value, name, Root(name, value), 0)
                self._parts.update(id(one.value) for one in inner.found)
            elif self._kinds.get(name) == "pickle":
                self._parts.add(id(value.value))
            elif self._kinds.get(name) == "scheduler":
                self._parts.update(id(one) for one in getattr(value, "_schedulers", ()))
        self._memory = {
            address
            for one in captured
            if one.kind != "optimizer"
            for value in one.values
            if is_tensor(value) and (address := _address(value)) is not None
        }
        self._traces: dict[str, frozenset[str] | None] = {}

    def name_of(self, value: Any) -> str | None:
        """Return the name under which this very object is tracked."""
        return self._names.get(id(value))

    def holds(self, found: _Found) -> bool:
        """Whether the state of something is in the snapshot, as far as can be told."""
        if id(found.value) in self._parts:
            return True
        if found.sort == sorts.PARAMETER:
            tensors = [found.value]
        elif found.sort == sorts.MODULE:
            tensors = list(_tensors(found.value))
        else:
            return found.root.own is not None and self._shows_trace(found)
        if all(_address(one) is None or _address(one) in self._memory for one in tensors):
            return True
        return found.root.own is not None and (
            self._shows_trace(found) or self._has_shapes(found.root.own, tensors)
        )

    def _shows_trace(self, found: _Found) -> bool:
        """Whether the state that an object's own method gave names the attribute, or may hide it:
        where it is no dict, nobody can tell."""
        own = str(found.root.own)
        if own not in self._traces:
            one = self._captured.get(own)
            self._traces[own] = None if one is None else _traces(one)
        traces = self._traces[own]
        if traces is None:
            return True
        if found.sort == sorts.GENERATOR and any(_is_of_rng(trace) for trace in traces):
            return True
        names = found.path.removeprefix(found.root.path).lower().split(".")
        return any(_is_alike(name.strip("_"), trace) for name in names if name for trace in traces)

    def _has_shapes(self, own: str, tensors: list[Any]) -> bool:
        given = Counter(tuple(value.shape) for value in self._captured[own].values)
        wanted = Counter(tuple(one.shape) for one in tensors)
        return all(given[shape] >= count for shape, count in wanted.items())


def _traces(captured: Captured) -> frozenset[str] | None:
    """Return every name in a component's state; None where it has none."""
    traces: set[str] = {part.lower() for name in captured.names for part in name.split("/")}
    nodes = [captured.structure.get("tree")] if isinstance(captured.structure, dict) else []
    if not nodes or not isinstance(nodes[0], dict):
        return None
    while nodes and len(traces) < _TRACES_MAX:
        node = nodes.pop()
        if isinstance(node, dict):
            traces.update(str(key).lower().strip("_") for key in node)
            nodes.extend(node.values())
        elif isinstance(node, list):
            nodes.extend(node)
        elif isinstance(node, str):
            traces.add(node.lower().strip("_"))
    return frozenset(traces)


def _is_alike(name: str, trace: str) -> bool:
    return name == trace or (min(len(name), len(trace)) > 2 and (name in trace or trace in name))


def _is_of_rng(trace: str) -> bool:
    return "bit_generator" in trace or "rng" in trace or "generator" in trace


def _tensors(module: Any) -> Iterator[Any]:
    """Yield what a module's state_dict() would hold."""
    for one in module.modules():
        yield from (value for value in one._parameters.values() if value is not None)
        for name, value in one._buffers.items():
            if value is not None and name not in one._non_persistent_buffers_set:
                yield value


def _address(value: Any) -> tuple[Any, int] | None:
    """Return where a tensor's values lie; None where it has none."""
    try:
        return (value.device, value.untyped_storage().data_ptr()) if value.numel() else None
    except (RuntimeError, NotImplementedError, ValueError):  # not made yet, or of another layout
        return None


def _process_generators() -> Iterator[int]:
    """Yield the generators of the process, which are saved unasked or excluded by name."""
    yield id(getattr(random, "_inst", None))
    yield id(getattr(np.random.mtrand, "_rand", None))
    if is_torch_loaded():
        import torch

        yield id(torch.default_generator)
        yield from map(id, torch.cuda.default_generators)


def _uncaptured(lost: list[_Found]) -> UncapturedStateError:
    first = lost[0]
    more = "".join(
        f"; so {'is' if len(lost) == 2 else 'are'} "
        + ", ".join(f"{one.path} ({one.sort})" for one in lost[1:_SHOWN])
        + (f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else "")
        for _ in range(len(lost) > 1)
    )
    last = first.path.rpartition(".")[2].strip("_") or "part"
    return UncapturedStateError(
        f"{first.path} is {name_with_article(first.value)} ({first.sort}) that no snapshot would "
        f"hold{more}. Track it: engine.track({last}=...); or leave it out where everybody sees it: "
        f"engine.exclude({first.path!r}, why), with harmless=True where training does not need it",
        component=first.root.path,
        path=first.path,
        sort=first.sort,
        others=tuple(one.path for one in lost[1:]),
    )


def _replaced(found: _Found, name: str) -> ReplacedObjectError:
    return ReplacedObjectError(
        f"{found.path} is another {found.sort} than the one that is tracked as {name!r}, and a "
        "snapshot would hold the former one. Change it in place (load_state_dict, copy_), or "
        "replace it before engine.track()",
        component=name,
        path=found.path,
    )
