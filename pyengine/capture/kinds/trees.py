"""Counters (dicts, lists, dataclasses, ...) and single tensors or arrays, restored in place."""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np

from pyengine.capture.component import Captured, Component, Decoded, Phase
from pyengine.capture.lazy_torch import is_tensor
from pyengine.capture.leaves import DataclassLeaf, TensorLeaf
from pyengine.capture.merge import Merge
from pyengine.capture.protocol import type_name
from pyengine.capture.tree import Encoder


class _TreeComponent(Component):
    """A value that is one tree."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(name)
        self.value = value

    def capture(self) -> Captured:
        """Return the value with everything that it holds."""
        encoder = Encoder(self.name)
        structure = {"tree": encoder.encode(self.value)}
        return Captured(self.name, self.kind, structure, encoder.names, encoder.values)


class CountersComponent(_TreeComponent):
    """A mutable container or dataclass; what it holds is refilled in place where it can be."""

    kind = "counters"
    phase = Phase.STATE

    def check(self, decoded: Decoded) -> tuple[str, ...]:
        decoded.plan = self._plan(decoded.value)
        return tuple(f"{self.name}{note}" for note in decoded.plan.notes)

    def _plan(self, saved: Any) -> Merge:
        got = saved.type_name if isinstance(saved, DataclassLeaf) else type_name(saved)
        if got != type_name(self.value):
            raise self._mismatch("another type of container", type_name(self.value), got)
        merge = Merge(self.name)
        merge.value(self.value, saved)
        return merge

    def apply(self, decoded: Decoded) -> None:
        merge = self._planned(decoded, self._plan)
        merge.run()
        decoded.late = [merge]


class TensorComponent(_TreeComponent):
    """One tensor, parameter or array, written in place."""

    kind = "tensor"
    phase = Phase.MODULE

    def check(self, decoded: Decoded) -> tuple[str, ...]:
        saved = decoded.value
        value: Any = saved.value if isinstance(saved, TensorLeaf) else saved
        is_array = isinstance(value, np.ndarray)
        if not is_array and not is_tensor(value):
            raise self._mismatch("no tensor or array", _sort(self.value), type_name(value))
        if is_tensor(value) != is_tensor(self.value):
            raise self._mismatch("a tensor on one side only", _sort(self.value), _sort(value))
        if tuple(value.shape) != tuple(self.value.shape) or value.dtype != self.value.dtype:
            raise self._mismatch("it does not fit", _sort(self.value), _sort(value))
        if is_tensor(self.value):
            from pyengine.capture.inplace import is_consistent

            if not is_consistent(self.value, value):
                raise self._mismatch(
                    "elements that share memory here differ", _sort(self.value), _sort(value)
                )
        return ()

    def apply(self, decoded: Decoded) -> None:
        merge = Merge(self.name)
        merge.value(self.value, decoded.value)
        merge.run()

    def live_tensors(self) -> list[tuple[str, Any]]:
        return [(self.name, self.value)] if is_tensor(self.value) else []


_CONTAINERS = (dict, OrderedDict, defaultdict, Counter, list, deque, set, bytearray)


def is_container(value: Any) -> bool:
    """Return whether `value` is a container that can be refilled in place."""
    if type(value) in _CONTAINERS:
        return True
    return not isinstance(value, type) and dataclasses.is_dataclass(value)


def _sort(value: Any) -> str:
    if is_tensor(value) or isinstance(value, np.ndarray):
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return type_name(value)
