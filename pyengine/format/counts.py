"""Counts, indices and durations as callers give them: the one place that says what passes."""

from __future__ import annotations

import math
import operator
from typing import Any

from pyengine.errors import ConfigError, SchemaError

COUNT_MAX = 1 << 50
"""More rows, lanes or bytes than any arena takes."""


def as_count(
    name: str,
    value: Any,
    *,
    least: int = 0,
    most: int | None = COUNT_MAX,
    error: type[ConfigError] | type[SchemaError] = ConfigError,
) -> int:
    """Return `value` as an int from `least` to `most`; `error` naming the argument otherwise.

    Takes what Python takes as an index (int, NumPy and torch integers) except flags: a float would
    be rounded, and True is nobody's count.
    """
    expected = f"an integer of at least {least}"
    if most is not None:
        expected = f"an integer from {least} to {most}"
    try:
        number = operator.index(value)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(value, bool) or number < least or (most or number) < number:
        raise error(
            f"{name}: expected {expected}, got {value!r:.100}",
            field=name,
            expected=expected,
            got=value,
        )
    return number


def as_seconds(name: str, value: Any) -> float:
    """Return a duration of at least 0 (math.inf: for ever); ConfigError naming it otherwise."""
    try:
        seconds = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds >= 0:
        expected = "seconds, at least 0"
        raise ConfigError(
            f"{name}: expected {expected}, got {value!r:.100}",
            field=name,
            expected=expected,
            got=value,
        )
    return seconds
