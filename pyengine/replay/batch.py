"""Batch: rows gathered from a ring, by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Batch(Mapping[str, Any]):
    """Rows by field; the arrays are the caller's own, not views of the ring.

    They may be kept and written for as long as anybody likes, beyond the ring's close too. Memory
    is used for a later batch only when the last array, tensor or view of it is gone.

    `batch["obs"]` is an array (or tensor) of shape (rows, *shape); of a nested observation it is a
    dict, and `batch["obs/camera"]` reaches into it. `indices` are the rows' refs (int64), which
    `ring.update`, `ring.gather` and `ring[...]` take. `weights` are importance weights (float32),
    all 1 for uniform sampling; a batch that is filled anew has others.

    `steps` and `discounts` are those of an n-step batch, `mask` that of sampled sequences; else
    None. They are arrays, or tensors where the fields are.
    """

    steps: Any = None
    discounts: Any = None
    mask: Any = None

    def __init__(
        self,
        values: dict[str, Any],
        indices: NDArray[np.int64],
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        self.values_by_field = values
        self._indices = indices
        self._weights: Any = weights

    @property
    def indices(self) -> NDArray[np.int64]:
        """The rows' refs, shape (rows,)."""
        return self._indices

    @indices.setter
    def indices(self, refs: NDArray[np.int64]) -> None:
        self._indices = refs
        # Those were of other rows.
        self._weights = self.steps = self.discounts = self.mask = None

    @property
    def weights(self) -> Any:
        """Importance weights, shape (rows,): an array, or what was drawn by priority for a
        `device` a tensor there."""
        if self._weights is None:
            self._weights = np.ones(len(self.indices), np.float32)
        return self._weights

    @weights.setter
    def weights(self, weights: Any) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Any:
        if name in self.values_by_field:
            return self.values_by_field[name]
        prefix = f"{name}/"
        nested: dict[str, Any] = {}
        for key, value in self.values_by_field.items():
            if key.startswith(prefix):
                *parents, leaf = key[len(prefix) :].split("/")
                place = nested
                for parent in parents:
                    place = place.setdefault(parent, {})
                place[leaf] = value
        if not nested:
            raise KeyError(name)
        return nested

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.partition("/")[0] for name in self.values_by_field))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        fields = ", ".join(f"{key}: {value.shape}" for key, value in self.values_by_field.items())
        return f"Batch({len(self.indices)} rows; {fields})"
