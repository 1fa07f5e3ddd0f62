"""What an object of a Python class consists of: its attributes, and nothing else.

Only objects whose whole state Python can see are taken apart. A class written in C (or a class
that inherits from one) may hold more than its attributes show, so it is refused.
"""

from __future__ import annotations

import types
import typing
from functools import lru_cache
from typing import Any

_TRANSPARENT = (object, typing.Generic, typing.Protocol)
_NATIVE = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
)
_POINTER_BYTES = 8


def is_python_class(kind: Any) -> bool:
    """Return whether the attributes of an instance of `kind` are all the state it has."""
    return _is_python_class(kind)


@lru_cache(maxsize=4096)
def _is_python_class(kind: Any) -> bool:
    return all(base in _TRANSPARENT or _is_python(base) for base in kind.__mro__)


def _is_python(kind: type[Any]) -> bool:
    """Return whether a `class` statement made `kind` out of parts that Python can see."""
    own = vars(kind).items()
    if any(isinstance(value, _NATIVE) and not _is_borrowed(kind, value) for _, value in own):
        return False
    getsets = {name for name, value in own if isinstance(value, types.GetSetDescriptorType)}
    slots = sum(isinstance(value, types.MemberDescriptorType) for _, value in own)
    base = kind.__base__ or object
    room = _POINTER_BYTES * (slots + 2)  # two for __dict__ and __weakref__
    if kind.__basicsize__ - base.__basicsize__ > room:
        return False
    return getsets <= {"__dict__", "__weakref__"}


def _is_borrowed(kind: type[Any], value: Any) -> bool:
    """Return whether `value` is a function of C that a Python class only keeps as an attribute."""
    owner = getattr(value, "__objclass__", None)
    if owner is not None:
        return owner is not kind
    return getattr(value, "__name__", "") != "__new__"


@lru_cache(maxsize=4096)
def _slots(kind: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        members = vars(base).items()
        found.update((n, v) for n, v in members if isinstance(v, types.MemberDescriptorType))
    return found


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that the instance itself holds, slots included."""
    kind: Any = type(value)
    held = dict(getattr(value, "__dict__", {}))
    for name, slot in _slots(kind).items():
        try:
            held[name] = slot.__get__(value)
        except AttributeError:
            continue
    return held


def replace_attributes(value: Any, new: dict[str, Any], gone: set[str]) -> None:
    """Set attributes past properties and `__setattr__`, and remove those in `gone`."""
    kind: Any = type(value)
    slots = _slots(kind)
    for name in gone:
        if name in slots:
            slots[name].__delete__(value)
        else:
            del value.__dict__[name]
    for name, item in new.items():
        if name in slots:
            slots[name].__set__(value, item)
        else:
            value.__dict__[name] = item
