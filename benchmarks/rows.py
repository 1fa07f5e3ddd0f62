"""The transitions of the workloads: their fields, and contents that follow from a row's number.

Every contestant stores these fields with these dtypes. Contents come from one block of noise, again
and again, so that making rows costs next to nothing; `reward` is the row's number, by which a batch
is checked, whatever library it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 32 << 20
"""Larger than a last-level cache share: `extend` reads its source from memory, as memcpy does."""

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Rows:
    """Transitions of one shape: (name, shape of one row, dtype) of each field."""

    name: str
    fields: tuple[tuple[str, tuple[int, ...], str], ...]

    @cached_property
    def row_bytes(self) -> int:
        return sum(prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype in self.fields)

    @cached_property
    def block_rows(self) -> int:
        return max(256, BLOCK_BYTES // self.row_bytes)

    @cached_property
    def block(self) -> Columns:
        rng = np.random.default_rng(7)
        return {
            name: _noise(rng, (self.block_rows, *shape), np.dtype(dtype))
            for name, shape, dtype in self.fields
        }

    def has(self, name: str) -> bool:
        return any(field == name for field, _, _ in self.fields)

    def chunks(self, first: int, count: int, most: int | None = None) -> Iterator[Columns]:
        """Yield rows [first, first + count) as views of the block, at most `most` at a time."""
        end = first + count
        while first < end:
            place = first % self.block_rows
            size = min(end - first, self.block_rows - place, most or self.block_rows)
            chunk = {name: column[place : place + size] for name, column in self.block.items()}
            chunk["reward"] = np.arange(first, first + size).astype(np.float32)
            yield chunk
            first += size

    def check(self, batch: Mapping[str, NDArray[Any]], count: int) -> None:
        """Raise RuntimeError unless `batch` has `count` rows with the contents of their numbers."""
        numbers = batch["reward"].reshape(-1).astype(np.int64)
        if len(numbers) != count:
            raise RuntimeError(f"{count} rows were asked for, {len(numbers)} came")
        places = numbers % self.block_rows
        for name, shape, dtype in self.fields:
            if name not in batch or name == "reward":
                continue
            column = batch[name].reshape(count, *shape)
            if column.dtype != np.dtype(dtype) and name in ("obs", "next_obs", "action"):
                raise RuntimeError(f"{name} is kept as {column.dtype}, not as {dtype}")
            if not np.array_equal(column, self.block[name][places]):
                raise RuntimeError(f"{name} of a sampled row is not what was added")


def _noise(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind == "f":
        return rng.random(shape, np.float32).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape, np.float32) < 0.01
    return rng.integers(0, 251 if dtype.itemsize == 1 else 18, shape, dtype)


def _transitions(
    name: str, obs: tuple[tuple[int, ...], str], action: Any, *, next_obs: bool
) -> Rows:
    return Rows(
        name,
        (
            ("obs", *obs),
            *((("next_obs", *obs),) if next_obs else ()),
            ("action", *action),
            ("reward", (), "float32"),
            ("terminated", (), "bool"),
            ("truncated", (), "bool"),
        ),
    )


VECTORS = _transitions("vectors", ((17,), "float32"), ((6,), "float32"), next_obs=True)
STACKS = _transitions("stacks", ((4, 84, 84), "uint8"), ((), "int64"), next_obs=True)
FRAMES = _transitions("frames", ((1, 84, 84), "uint8"), ((), "int64"), next_obs=False)
"""One frame a row: a million of them take 7 GB. Libraries that rebuild next_obs from the row after
it are told so."""

STACKED_FRAMES = _transitions(
    "stacked_frames", ((4, 84, 84), "uint8"), ((), "int64"), next_obs=False
)
"""Whole stacks, each row's next_obs being the row after it: what everybody can keep alike."""

BY_NAME = {rows.name: rows for rows in (VECTORS, STACKS, FRAMES, STACKED_FRAMES)}
