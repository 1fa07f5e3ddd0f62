"""What a row of a Tianshou buffer consists of, found in what the buffer is given first.

Keys nest ("obs" may hold "agent" and "goal"); a field of the ring is called by its keys, joined by
"/". Numbers of fixed shape become fields. Everything else is an *extra*: objects, tensors, and keys
that turn up later. Extras stay in arrays of their own and are copied whole into every snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tianshou.data import Batch

from pyengine.errors import SchemaError
from pyengine.format.schema import Field, Schema
from pyengine.replay.plan import numpy_dtype

Path = tuple[str, ...]

_FLAGS = ("done", "terminated", "truncated")


@dataclass(frozen=True, slots=True)
class Layout:
    """Fields by path, in the order of the library's keys, and the paths of empty batches."""

    fields: dict[Path, Field]
    empty: tuple[Path, ...]

    @classmethod
    def of_step(cls, batch: Any, *, is_stacked: bool) -> Layout:
        """Return the layout of what `add` is given, with a leading axis or without one."""
        lead = 1 if is_stacked else 0
        return cls._of(batch, lambda path, value: _field(path, value, lead))

    @classmethod
    def of_rows(cls, meta: Any) -> Layout:
        """Return the layout of a stock buffer's own arrays."""
        return cls._of(meta, lambda path, value: _field(path, value, 1))

    @classmethod
    def _of(cls, batch: Any, find: Any) -> Layout:
        found = {path: find(path, value) for path, value in leaves(batch)}
        fields = {path: field for path, field in found.items() if field is not None}
        return cls(fields, tuple(empty_batches(batch)))

    @property
    def by_name(self) -> dict[str, Field]:
        """The fields as a schema has them."""
        return {name_of(path): field for path, field in self.fields.items()}

    def to_record(self) -> dict[str, Any]:
        """Return plain values, for `from_record`."""
        return {
            "fields": [
                {"path": list(path), "shape": list(field.shape), "dtype": field.dtype}
                for path, field in self.fields.items()
            ],
            "empty": [list(path) for path in self.empty],
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Layout:
        """Return the layout that `to_record` told."""
        fields = {
            tuple(one["path"]): Field(tuple(one["shape"]), one["dtype"]) for one in record["fields"]
        }
        return cls(fields, tuple(tuple(path) for path in record["empty"]))


def leaves(batch: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every value of nested batches, with its keys."""
    for key, value in batch.items():
        if isinstance(value, Batch):
            yield from leaves(value, (*path, key))
        elif value is not None:
            yield (*path, key), value


def empty_batches(batch: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the keys of batches that hold nothing."""
    for key, value in batch.items():
        if isinstance(value, Batch):
            if value.get_keys():
                yield from empty_batches(value, (*path, key))
            else:
                yield (*path, key)


def name_of(path: Path) -> str:
    """Return what the field of a path is called."""
    return "/".join(path)


def empty_array(value: Any, size: int, *, is_stacked: bool) -> Any:
    """Return an array for `size` extras like `value`, as the library would make it."""
    if isinstance(value, torch.Tensor):
        row = value[0] if is_stacked else value
        return torch.zeros((size, *row.shape), dtype=row.dtype, device=row.device)
    array = np.asarray(value)
    shape = array.shape[1:] if is_stacked else array.shape
    if array.dtype.kind in "biufc":
        return np.zeros((size, *shape), array.dtype)
    return np.full((size, *shape), None, dtype=object)


def _field(path: Path, value: Any, lead: int) -> Field | None:
    """Return the field for a value with `lead` axes before those of a row; None for an extra."""
    if isinstance(value, torch.Tensor) or any("/" in key for key in path):
        return None
    array = np.asarray(value)
    dtype = array.dtype
    if path == ("rew",):
        dtype = np.dtype(float)
    elif len(path) == 1 and path[0] in _FLAGS:
        dtype = np.dtype(bool)
    if dtype.kind not in "biuf" or array.ndim < lead:
        return None
    try:
        field = Field(array.shape[lead:], dtype)
        Schema({name_of(path): field})
    except SchemaError:
        return None
    return field if numpy_dtype(field) == dtype else None
