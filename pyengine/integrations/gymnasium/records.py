"""Dataclasses and named tuples that are told apart by their fields alone."""

from __future__ import annotations

import dataclasses
from typing import Any

from pyengine.capture.protocol import find_type, type_name
from pyengine.integrations.gymnasium.classes import attributes, is_python_class


def is_record(value: Any) -> bool:
    """Return whether `value` is equal to another of its type with equal fields, and holds no more.

    Its class must be found again by name.
    """
    kind = type(value)
    if find_type(type_name(value)) is not kind:
        return False
    if isinstance(value, tuple):
        return _is_named_tuple(kind) and not getattr(value, "__dict__", None)
    if not dataclasses.is_dataclass(value) or not is_python_class(kind):
        return False
    names = {item.name for item in dataclasses.fields(value)}
    compares: Any = kind.__eq__
    return compares is not object.__eq__ and set(attributes(value)) <= names


def record_kind(value: Any) -> str:
    """Return "namedtuple" or "dataclass"."""
    return "namedtuple" if isinstance(value, tuple) else "dataclass"


def record_fields(value: Any) -> dict[str, Any]:
    """Return the fields by name."""
    if isinstance(value, tuple):
        names: tuple[str, ...] = getattr(type(value), "_fields", ())
        return dict(zip(names, value, strict=True))
    return attributes(value)


def find_record_type(kind: str, name: str) -> type[Any]:
    """Return the type of that name; ValueError where it is none or not imported here."""
    found = find_type(name)
    if found is None:
        raise ValueError(f"no type {name} is imported here")
    fits = dataclasses.is_dataclass(found) if kind == "dataclass" else _is_named_tuple(found)
    if not fits:
        raise ValueError(f"{name} is no {kind}")
    return found


def make_record(kind: type[Any]) -> Any:
    """Make a dataclass instance without running any of its code."""
    return object.__new__(kind)


def _is_named_tuple(kind: type[Any]) -> bool:
    return issubclass(kind, tuple) and kind.__base__ is tuple and hasattr(kind, "_fields")
