"""Arrays with their memory layout and their sharing of memory.

An array that owns its memory is saved as it is; a view is saved as a window on the array that owns
the memory, so that two views of one array are that again. Axes keep their order in memory: the
order of a floating-point sum depends on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class UnownedMemoryError(ValueError):
    """The memory of an array belongs to something that is no array."""


class ArrayCopies:
    """Copies of arrays for one state, each owner of memory once."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Array, Array]] = {}

    def saved(self, array: Array) -> Any:
        """Return an independent value that `rebuild` turns into the array; UnownedMemoryError."""
        if not array.size:
            return array.copy()
        owner = _owner(array)
        axes = sorted(range(owner.ndim), key=lambda axis: -owner.strides[axis])
        dense = owner.transpose(axes)
        if not dense.flags.c_contiguous:
            raise UnownedMemoryError("its memory has gaps")
        copy = self._copies.setdefault(id(owner), (owner, dense.copy()))[1]
        if owner is array and axes == list(range(owner.ndim)) and array.flags.writeable:
            return copy
        saved = {"@": "array", "owner": copy, "axes": axes, "writable": array.flags.writeable}
        if owner is not array:
            saved["dtype"] = array.dtype
            saved["shape"] = list(array.shape)
            saved["strides"] = list(array.strides)
            saved["offset"] = _address(array) - _address(owner)
        return saved


class ArrayRebuilds:
    """The way back, for one state."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Array, Array]] = {}

    def plain(self, saved: Array) -> Array:
        """Return the array that owns the memory, in the order of its memory."""
        return self._made.setdefault(id(saved), (saved, saved.copy()))[1]

    def rebuild(self, saved: dict[str, Any]) -> Array:
        """Return what was saved as a dict; ValueError or TypeError where it is malformed."""
        owner = self.plain(saved["owner"])
        if "offset" in saved:
            if saved["dtype"].hasobject:
                raise ValueError("a window on objects")
            array: Array = np.ndarray(
                tuple(saved["shape"]),
                saved["dtype"],
                buffer=owner,
                offset=saved["offset"],
                strides=tuple(saved["strides"]),
            )
        else:
            array = owner.transpose([int(axis) for axis in np.argsort(saved["axes"])])
        if not saved["writable"]:
            array.flags.writeable = False
        return array


def _owner(array: Array) -> Array:
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    for part in (array, owner):
        if type(part) is not np.ndarray:
            raise UnownedMemoryError(f"it is, or is a view of, a {type(part).__name__}")
    base: Any = owner.base
    base = base.obj if isinstance(base, memoryview) else base
    if base is not None and not isinstance(base, bytes):
        raise UnownedMemoryError(f"its memory belongs to a {type(base).__name__}")
    if owner.dtype.hasobject and (owner is not array or not owner.flags.c_contiguous):
        raise UnownedMemoryError("it is a view of objects")
    return owner


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
