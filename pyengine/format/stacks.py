"""Pairs of fields that share their values in time: an observation and the one after it.

A row keeps the newest frame of the later field. The frames of the earlier one are those of the rows
before it in its sequence; see "Stacks" in FORMAT.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyengine.errors import SchemaError
from pyengine.format.field import Field


@dataclass(frozen=True, slots=True)
class StackPair:
    """Two append fields of `depth` frames each; rows keep frames under the name `next_obs`."""

    obs: str
    next_obs: str
    depth: int


def find_stacks(fields: Mapping[str, Field]) -> tuple[StackPair, ...]:
    """Return the pairs in order; SchemaError where a stack has no partner, or an unlike one."""
    pairs: dict[str, StackPair] = {}
    for name, field in fields.items():
        if field.next_of is None:
            continue
        obs = fields.get(field.next_of)
        if obs is None or obs.mutable or obs.next_of is not None or field.next_of in pairs:
            what = "an append field that is itself next_of no other, and of one field only"
            raise _error(name, f"next_of to name {what}", field.next_of)
        here, there = (field.shape, field.dtype, field.stack), (obs.shape, obs.dtype, obs.stack)
        if here != there:
            raise _error(name, f"shape, dtype and stack of {field.next_of!r}: {there}", here)
        pairs[field.next_of] = StackPair(field.next_of, name, field.stack)
    for name, field in fields.items():
        if field.stack > 1 and field.next_of is None and name not in pairs:
            text = f"a field beside it with next_of={name!r} and stack={field.stack}"
            raise _error(name, text, "none")
    return tuple(pairs.values())


def stack_record(field: Field) -> dict[str, Any]:
    """Return what a schema's record says of a stack; nothing of a plain field."""
    record: dict[str, Any] = {}
    if field.stack != 1:
        record["stack"] = field.stack
    if field.next_of is not None:
        record["next_of"] = field.next_of
    return record


def _error(field: str, expected: str, got: Any) -> SchemaError:
    return SchemaError(
        f"{field}: expected {expected}, got {got!r}", field=field, expected=expected, got=got
    )
