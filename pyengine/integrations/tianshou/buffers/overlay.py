"""Overlay: values that stand for those of some rows of one lane, until they are forgotten."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Positions = NDArray[np.int64]


class Overlay:
    """By field, the positions that other values were laid over, sorted, and these values."""

    def __init__(self) -> None:
        self._laid: dict[str, tuple[Positions, Array]] = {}

    def lay(self, name: str, positions: Positions, values: Array) -> None:
        """Lay `values` over `positions`; of equal positions the last one counts, as in NumPy."""
        former = self._laid.get(name)
        if former is not None:
            positions = np.concatenate((former[0], positions))
            values = np.concatenate((former[1], values))
        order = np.argsort(positions, kind="stable")
        in_order = positions[order]
        is_last = np.append(in_order[1:] != in_order[:-1], True)
        self._laid[name] = in_order[is_last], values[order[is_last]]

    def apply(self, name: str, positions: Positions, values: Array) -> None:
        """Put what was laid over `positions` into `values`, which were read there."""
        laid = self._laid.get(name)
        if laid is None or not len(laid[0]):
            return
        places = np.searchsorted(laid[0], positions).clip(max=len(laid[0]) - 1)
        is_laid = laid[0][places] == positions
        values[is_laid] = laid[1][places[is_laid]]

    def clear(self) -> None:
        """Forget everything."""
        self._laid.clear()
