"""Counts, numbers and durations as callers give them: the one place that says what passes."""

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
    """Return `value` as an int from `least` (0 or more) to `most`; else `error` naming it.

    Takes what Python takes as an index (int, NumPy and torch integers) except flags: a float would
    be rounded, and True is nobody's count.
    """
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except (TypeError, ValueError):
        number = -1
    if number >= least and (most is None or number <= most):
        return number
    expected = f"at least {least}" if most is None else f"from {least} to {most}"
    raise error(
        f"{name}: expected an integer {expected}, got {value!r:.100}",
        field=name,
        expected=f"an integer {expected}",
        got=value,
    )


def as_number(name: str, value: Any, *, most: float = math.inf) -> float:
    """Return a finite number from 0 to `most`; ConfigError naming it otherwise."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= most or number == math.inf:
        expected = "a number of at least 0" if most == math.inf else f"a number from 0 to {most}"
        raise ConfigError(
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
