"""Functions and methods among the attributes of environments.

A function holds state only in its closure: the variables there are treated like attributes. Other
callables, classes and modules hold none; that the live one has the same name is all there is to
check.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from pyengine.capture.protocol import type_name

_FIXED = (type, types.ModuleType)
_NATIVE_FUNCTIONS = ("ufunc", "cython_function_or_method")
_MUTABLE = (list, dict, set, bytearray)


def is_code(value: Any) -> bool:
    """Return whether `value` is a function, class or module."""
    if isinstance(value, types.BuiltinFunctionType):
        owner = value.__self__
        return owner is None or isinstance(owner, _FIXED)
    if isinstance(value, _FIXED) or type(value).__name__ in _NATIVE_FUNCTIONS:
        return True
    return isinstance(value, types.FunctionType)


def is_method(value: Any) -> bool:
    """Return whether `value` is a Python method bound to an object under its own name."""
    if not isinstance(value, types.MethodType):
        return False
    return hasattr(type(value.__self__), value.__func__.__name__)


def is_partial(value: Any) -> bool:
    """Return whether `value` is a functools.partial without attributes of its own."""
    return type(value) is functools.partial and not value.__dict__


def name_of(value: Any) -> str:
    """Return what tells one class of objects, or one piece of code, from another."""
    if not is_code(value):
        return type_name(value)
    module = getattr(value, "__module__", None)
    return f"{module}:{getattr(value, '__qualname__', getattr(value, '__name__', '?'))}"


def closure(value: Any) -> dict[str, Any]:
    """Return the variables in the closure of a function, without those not yet set."""
    if not isinstance(value, types.FunctionType) or value.__closure__ is None:
        return {}
    found = {}
    for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def set_closure(value: Any, new: dict[str, Any]) -> None:
    """Set variables in the closure of a function."""
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        if name in new:
            cell.cell_contents = new[name]


def hidden_state(value: Any) -> str | None:
    """Return where else than in its closure a function may keep state, or None."""
    if not isinstance(value, types.FunctionType):
        return None
    defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if any(isinstance(item, _MUTABLE) for item in defaults):
        return "a function with a mutable default value"
    return "a function with attributes" if set(value.__dict__) - {"__wrapped__"} else None
