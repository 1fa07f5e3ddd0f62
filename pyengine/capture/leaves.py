"""What a decoded tree holds where plain values are not enough to rebuild an object.

A leaf is state without the object: it goes into a live object, or a new one is made for it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass(slots=True, eq=False)
class TensorLeaf:
    """A tensor's value on the CPU, and what a new tensor for it has to look like."""

    value: torch.Tensor
    device: str = "cpu"
    requires_grad: bool = False
    parameter: bool = False
    stride: tuple[int, ...] | None = None


@dataclass(slots=True, eq=False)
class RngLeaf:
    """The state of a random number generator of the given kind (see pyengine.capture.rngs)."""

    kind: str
    state: Any = None


@dataclass(slots=True, eq=False)
class DataclassLeaf:
    """The fields of a dataclass instance."""

    type_name: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class NamedTupleLeaf:
    """The fields of a named tuple."""

    type_name: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EnumLeaf:
    """A member of an enumeration (hashable: it may be a key)."""

    type_name: str
    name: str


@dataclass(slots=True, eq=False)
class ObjectLeaf:
    """What an object's own method `how` gave."""

    type_name: str
    how: str
    state: Any = None


def lost_factory() -> Any:
    """Stand in for a defaultdict's factory that could not be saved."""
    raise KeyError("the default factory of this dict was not saved")


def plain(value: Any) -> Any:
    """Return a decoded tree with every leaf turned into plain data, for readers without objects.

    Tensors and arrays share memory with the file they were read from; dataclasses and named
    tuples become dicts, generators and objects become their state, enumerations their names.
    """
    return _Plain().convert(value)


class _Plain:
    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Any]] = {}

    def convert(self, value: Any) -> Any:
        kind = type(value)
        if kind is TensorLeaf:
            return value.value
        if kind is EnumLeaf:
            return value.name
        if kind in (tuple, frozenset):
            return kind(self.convert(item) for item in value)
        if id(value) in self._made:
            return self._made[id(value)][1]
        if kind in (RngLeaf, ObjectLeaf):
            return self.convert(value.state)
        if kind in (DataclassLeaf, NamedTupleLeaf):
            return self._dict(value, value.fields)
        if isinstance(value, dict):
            return self._dict(value, value)
        if kind is set:
            return {self.convert(item) for item in value}
        if kind in (list, deque):
            made: Any = [] if kind is list else deque(maxlen=value.maxlen)
            self._made[id(value)] = (value, made)
            made.extend(self.convert(item) for item in value)
            return made
        if kind is np.ndarray and value.dtype.kind == "O":
            return _objects([self.convert(item) for item in value.ravel()], value.shape)
        return value

    def _dict(self, value: Any, items: dict[Any, Any]) -> dict[Any, Any]:
        kind = type(items) if type(items) is not defaultdict else dict
        made = kind()
        self._made[id(value)] = (value, made)
        for key, item in items.items():
            made[self.convert(key)] = self.convert(item)
        return made


def _objects(items: list[Any], shape: tuple[int, ...]) -> Any:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array.reshape(shape)
