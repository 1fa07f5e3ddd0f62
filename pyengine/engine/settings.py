"""What callers may pass: settings are checked by name, before anything is made or changed.

Every refusal is a ConfigError that names the setting, what it got and what it expects.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from pyengine.errors import ConfigError
from pyengine.format.document import INTEGER_MAX, is_unicode

_TEXT_MAX = 4096


def check_count(name: str, value: Any, *, low: int) -> int:
    """Return an integer, of any library, in [low, INTEGER_MAX]; a bool is none."""
    wanted = f"an integer from {low} to 2**63 - 1"
    if isinstance(value, bool):
        _refuse(name, value, wanted)
    try:
        number = operator.index(value)
    except TypeError:
        _refuse(name, value, wanted)
    if not low <= number <= INTEGER_MAX:
        _refuse(name, value, wanted)
    return number


def check_step(value: Any) -> int:
    """Return a step number, as a manifest and a directory's name can hold it."""
    return check_count("step", value, low=0)


def check_seconds(name: str, value: Any, *, may_be_zero: bool) -> float:
    """Return a finite number of seconds."""
    wanted = "a finite number of seconds, " + ("at least 0" if may_be_zero else "more than 0")
    seconds = _number(name, value, wanted)
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not may_be_zero):
        _refuse(name, value, wanted)
    return seconds


def check_share(name: str, value: Any) -> float:
    """Return a number in (0, 1]."""
    wanted = "a number more than 0 and at most 1, or None for no limit"
    share = _number(name, value, wanted)
    if not 0 < share <= 1:
        _refuse(name, value, wanted)
    return share


def check_flag(name: str, value: Any) -> bool:
    """Return True or False: a text like "no" must not count as true."""
    if not isinstance(value, bool):
        _refuse(name, value, "True or False")
    return value


def check_callable(name: str, value: Any) -> None:
    """Refuse what cannot be called: the result of a check that was called too early, say."""
    if not callable(value):
        _refuse(name, value, "a function without arguments")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse what is none of the choices."""
    if not isinstance(value, str) or value not in choices:
        _refuse(name, value, f"one of {', '.join(map(repr, choices))}")


def check_text(name: str, value: Any) -> str:
    """Return a text that a manifest can hold."""
    if not isinstance(value, str) or len(value) > _TEXT_MAX or not is_unicode(value):
        _refuse(name, value, f"a text of at most {_TEXT_MAX} characters, without lone surrogates")
    return value


def check_path(name: str, value: Any) -> str:
    """Return the path of a directory; an empty one would be the working directory by accident."""
    wanted = "the path of a directory"
    try:
        path = os.fspath(value)
    except TypeError:
        _refuse(name, value, wanted)
    if not isinstance(path, str) or not path or "\0" in path:
        _refuse(name, value, wanted)
    return path


def check_mapping(name: str, value: Any) -> dict[str, Any]:
    """Return a dict of a mapping whose keys are texts; None is an empty one."""
    wanted = "a mapping whose keys are texts"
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        _refuse(name, value, wanted)
    return dict(value)


def check_names(name: str, value: Any) -> tuple[str, ...]:
    """Return a collection of texts as a tuple; one text is not a collection of its letters."""
    is_collection = isinstance(value, Collection) and not isinstance(value, (str, bytes))
    if not is_collection or not all(isinstance(item, str) for item in value):
        _refuse(name, value, "a collection of names")
    return tuple(value)


def _number(name: str, value: Any, wanted: str) -> float:
    if isinstance(value, (bool, str, bytes)):
        _refuse(name, value, wanted)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        _refuse(name, value, wanted)


def _refuse(name: str, value: Any, wanted: str) -> NoReturn:
    shown = repr(value)[:100]
    raise ConfigError(f"{name}: expected {wanted}, got {shown}")
