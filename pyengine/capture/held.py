"""What an object holds and is worth a look: items of containers, attributes, parts of modules.

Other threads may change it meanwhile: each look begins with a copy that one call into C makes, past
whatever a subclass defines. Where something gets between even so, that call raises RuntimeError.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from pyengine.capture import sorts

ITEMS_MAX = 64
"""Items of a container that is looked into whole; longer ones hold data, as a rule."""

FIRST = 8
"""Items of a longer container that are looked at."""

_SCANNED = 1000
_TRIES = 10
_SEQUENCES = (list, tuple, deque, set, frozenset)
_OF_DATA = frozenset({sorts.NOTHING, sorts.CONTAINER, sorts.SPACE})

_bases: dict[type[Any], Any] = {}
"""The built-in container that a type is, or is made of; None for what is no container."""


def named(value: Any) -> list[tuple[str, Any]] | None:
    """Return what an object holds and is worth a look, by name; of a module, its children and what
    torch does not know of. None where it cannot be read, as it changes all the time."""
    for _ in range(_TRIES):
        try:
            return [(str(name), item) for name, item in _named(value) if sorts.sort_of(item)]
        except RuntimeError:
            continue
    return None


def _named(value: Any) -> Iterator[tuple[Any, Any]]:
    kind = type(value)
    if sorts.sort_of(value) == sorts.MODULE:
        passed = _of_modules()
        attributes = list(vars(value).items())
        own = (pair for pair in attributes if pair[0] not in passed)
        return chain(own, list(value._modules.items()))
    base = _base(kind)
    if base is None:
        return iter(list(getattr(value, "__dict__", {}).items()))
    each = dict.items(value) if base is dict else enumerate(base.__iter__(value))
    found = list(islice(each, _count(base.__len__(value))))
    if kind is not base:
        found += getattr(value, "__dict__", {}).items()
    return iter(found)


def ids(value: Any) -> list[int]:
    """Return the identities of what `named` would yield; no more, as every snapshot does it.

    RuntimeError where another thread changes it at this moment.
    """
    known, nothing = sorts.known, sorts.NOTHING
    kind = type(value)
    if known.get(kind) != sorts.MODULE:
        return [id(item) for item in _contents(value, kind) if known.get(type(item)) != nothing]
    passed = _of_modules()
    found = [
        id(item)
        for name, item in vars(value).copy().items()
        if name not in passed and known.get(type(item)) != nothing
    ]
    return found + [id(item) for item in list(value._modules.values()) if item is not None]


def _contents(value: Any, kind: type[Any]) -> list[Any]:
    base = _bases[kind] if kind in _bases else _base(kind)
    if base is None:
        return list(getattr(value, "__dict__", {}).values())
    each = dict.values(value) if base is dict else base.__iter__(value)
    count = base.__len__(value)
    found = list(each) if count <= ITEMS_MAX else list(islice(each, FIRST))
    if kind is not base:
        found += getattr(value, "__dict__", {}).values()
    return found


def is_long(value: Any) -> bool:
    """Whether an object is a container of which only the first items are looked at."""
    base = _base(type(value))
    return base is not None and base.__len__(value) > ITEMS_MAX


def has_parts(value: Any) -> bool:
    """Whether a container has, among its first 1000 items, any that is more than data."""
    base = _base(type(value))
    each = dict.values(value) if base is dict else base.__iter__(value)
    try:
        items = list(islice(each, _SCANNED))
    except RuntimeError:
        return True
    return any(sorts.sort_of(item) not in _OF_DATA for item in items)


def _count(length: int) -> int:
    return length if length <= ITEMS_MAX else FIRST


def _base(kind: type[Any]) -> Any:
    if kind not in _bases:
        of = (base for base in (dict, *_SEQUENCES) if issubclass(kind, base))
        _bases[kind] = next(of, None)
    return _bases[kind]


_PASSED: frozenset[str] = frozenset()


def _of_modules() -> frozenset[str]:
    """Return the attributes that every module has."""
    global _PASSED
    if not _PASSED:
        from torch import nn

        _PASSED = frozenset(vars(nn.Module()))
    return _PASSED
