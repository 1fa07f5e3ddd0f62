"""Nested names: {"member3": {"policy": net}} is tracked as "member3/policy"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyengine.capture.environment import EnvironmentState
from pyengine.capture.pickled import Pickled
from pyengine.capture.sorts import MODULE, OPTIMIZER, RING, SCALER, SCHEDULER, sort_of
from pyengine.errors import ConfigError

_APART = frozenset({MODULE, OPTIMIZER, SCHEDULER, SCALER, RING})
"""Sorts of objects that are components of their own; what else a dict holds may be counters."""

_DEPTH_MAX = 8


def flatten(objects: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[Any, Any]]:
    """Yield names and objects; those of dicts that hold objects of their own as `<dict>/<name>`.

    ConfigError for a key in such a dict that is no text.
    """
    for name, value in objects.items():
        if prefix and not isinstance(name, str):
            raise ConfigError(
                f"{prefix.removesuffix('/')!r} is a dict of tracked objects, whose keys are part "
                f"of their names: expected texts, got {name!r:.100}"
            )
        full = f"{prefix}{name}" if prefix else name
        if type(value) is dict and is_group(value):
            yield from flatten(value, f"{full}/")
        else:
            yield full, value


def is_group(value: dict[Any, Any], depth: int = 0) -> bool:
    """Return whether a dict holds objects that are tracked one by one, itself or in dicts in it."""
    return depth < _DEPTH_MAX and any(
        is_group(item, depth + 1) if type(item) is dict else _is_apart(item)
        for item in value.values()
    )


def _is_apart(value: Any) -> bool:
    return isinstance(value, (EnvironmentState, Pickled)) or sort_of(value) in _APART
