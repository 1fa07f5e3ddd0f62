"""Objects that bring methods for their own state, and names of types."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_PAIRS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


@dataclass(frozen=True, slots=True)
class StateMethods:
    """How an object gives its state and takes it back; `how` is the name of the first method."""

    how: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]


def state_methods(value: Any) -> StateMethods | None:
    """Return the methods of an instance that has get_state/set_state or state_dict/..., or None."""
    if isinstance(value, type):
        return None
    for how, back in _PAIRS:
        get, put = getattr(value, how, None), getattr(value, back, None)
        if callable(get) and callable(put):
            return StateMethods(how, get, put)
    return None


def type_name(value: object) -> str:
    """Return "module:qualified name" of the value's type."""
    kind = type(value)
    return f"{kind.__module__}:{kind.__qualname__}"


def type_text(value: object) -> str:
    """Return the name of the value's type for people: "int", "my.module.Type"."""
    return type_name(value).replace(":", ".").removeprefix("builtins.")


def name_with_article(value: object) -> str:
    """Return the same as a sentence takes it: "an int", "a my.module.Type"."""
    name = type_text(value)
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def find_type(name: str) -> type[Any] | None:
    """Return the type of that name if its module is already imported; nothing is ever imported."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
