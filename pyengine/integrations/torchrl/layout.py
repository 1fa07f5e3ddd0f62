"""Layout: what one element of a TorchRL buffer consists of, and as which fields a ring keeps it.

An element is a tensor or a TensorDict, nested at will. Each tensor in it is one field; nested keys
are joined by "/". Of a storage with several dimensions the first counts steps, the others are the
ring's lanes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from pyengine.capture.protocol import name_with_article
from pyengine.errors import MissingFieldError, SchemaError, UnknownFieldError
from pyengine.format.schema import Field

Key = tuple[str, ...]

VALUE = "value"
"""The one field of elements that are tensors."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of an element: its key, and shape and dtype without steps and lanes."""

    key: Key
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """The field's name."""
        return "/".join(self.key) if self.key else VALUE


@dataclass(frozen=True, slots=True)
class Layout:
    """Leaves by field name, and what TensorDicts are rebuilt from.

    `lane_shape` are the dimensions of a storage behind the first; `batch_sizes` has for each
    TensorDict in an element (the element itself under ()) what its batch size has more than steps
    and lanes. It is empty where elements are tensors.
    """

    leaves: dict[str, Leaf]
    lane_shape: tuple[int, ...]
    batch_sizes: dict[Key, tuple[int, ...]]

    @classmethod
    def of(cls, element: Any, lane_dims: int) -> Layout:
        """Return the layout of storages of elements like this one; SchemaError where none holds it.

        `lane_dims` leading dimensions are lanes.
        """
        if isinstance(element, torch.Tensor):
            leaf = Leaf((), tuple(element.shape[lane_dims:]), element.dtype)
            return cls({leaf.name: leaf}, tuple(element.shape[:lane_dims]), {})
        if not isinstance(element, TensorDictBase):
            raise _unfit(
                VALUE, f"{name_with_article(element)}; a ring keeps tensors and TensorDicts: "
                "convert it before extend(), or in a transform of the buffer"
            )  # fmt: skip
        leaves: dict[str, Leaf] = {}
        batch_sizes: dict[Key, tuple[int, ...]] = {}
        for key, value in _walk(element, ()):
            if isinstance(value, TensorDictBase):
                batch_sizes[key] = tuple(value.batch_size[lane_dims:])
                continue
            if not isinstance(value, torch.Tensor):
                raise _unfit(
                    "/".join(key), f"{name_with_article(value)}, no tensor; leave it out with "
                    "ExcludeTransform, or keep its number in a tensor"
                )  # fmt: skip
            leaf = Leaf(key, tuple(value.shape[lane_dims:]), value.dtype)
            if leaf.name in leaves:
                raise _unfit(leaf.name, f"both {leaves[leaf.name].key} and {key}; rename one")
            leaves[leaf.name] = leaf
        if not leaves:
            raise _unfit(VALUE, "a TensorDict without tensors")
        return cls(leaves, tuple(element.batch_size[:lane_dims]), batch_sizes)

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return math.prod(self.lane_shape)

    def fields(self, mutable: set[str]) -> dict[str, Field]:
        """Return the ring's fields; those named in `mutable` may change once added."""
        return {
            name: Field(leaf.shape, str(leaf.dtype), mutable=True, default=0)
            if name in mutable
            else Field(leaf.shape, str(leaf.dtype))
            for name, leaf in self.leaves.items()
        }

    def name_of(self, key: Any) -> str:
        """Return the field of a nested key; UnknownFieldError."""
        parts = (key,) if isinstance(key, str) else tuple(key)
        for name, leaf in self.leaves.items():
            if leaf.key == parts:
                return name
        raise UnknownFieldError(
            f"elements of this storage have no {key!r}; they have {', '.join(self.leaves)}",
            field=str(key),
            expected=tuple(self.leaves),
            got=key,
        )

    def split(self, data: Any, steps: int | None, *, some: bool = False) -> dict[str, torch.Tensor]:
        """Return the values of `steps` elements (None: one, without an axis of its own) by field.

        Each has shape (steps, lanes, *shape). Raises MissingFieldError for data without one of the
        layout's keys, unless `some` are enough, and UnknownFieldError for others.
        """
        lead = (self.lanes,) if steps is None else (steps, self.lanes)
        if not self.batch_sizes:
            values = {VALUE: torch.as_tensor(data)}
        else:
            values = self._tensors(data, some)
        return {
            name: value.detach().reshape((*lead, *value.shape[value.ndim - len(leaf.shape) :]))
            for name, leaf in self.leaves.items()
            if (value := values.get(name)) is not None
        }

    def _tensors(self, data: Any, some: bool) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for name, leaf in self.leaves.items():
            value = data.get(leaf.key, None)
            if value is not None:
                found[name] = value
            elif not some:
                raise MissingFieldError(
                    f"{leaf.key}: every element of this storage has it, this data has not",
                    field=name,
                    expected=tuple(self.leaves),
                    got=tuple(map(str, data.keys(include_nested=True, leaves_only=True))),
                )
        for key in data.keys(include_nested=True, leaves_only=True):
            self.name_of(key)
        return found

    def join(
        self, values: dict[str, torch.Tensor], lead: tuple[int, ...], device: torch.device | None
    ) -> Any:
        """Return elements of batch size `lead` of values of shape (rows, *shape)."""
        shaped = {
            name: values[name].reshape((*lead, *leaf.shape)) for name, leaf in self.leaves.items()
        }
        return self.wrap(shaped, lead, device)

    def wrap(
        self, values: Mapping[str, torch.Tensor], lead: tuple[int, ...], device: torch.device | None
    ) -> Any:
        """Return elements of batch size `lead` that hold these very values."""
        if not self.batch_sizes:
            return values[VALUE]
        made = {
            key: TensorDict({}, batch_size=(*lead, *extra), device=device)
            for key, extra in self.batch_sizes.items()
        }
        for name, leaf in self.leaves.items():
            # As they are: what is a column must stay one.
            made[leaf.key[:-1]]._tensordict[leaf.key[-1]] = values[name]
        for key, inner in made.items():
            if key:
                made[key[:-1]]._tensordict[key[-1]] = inner
        return made[()]

    def to_record(self) -> dict[str, Any]:
        """Return the layout as plain values."""
        return {
            "leaves": [
                {"key": list(leaf.key), "shape": list(leaf.shape), "dtype": str(leaf.dtype)}
                for leaf in self.leaves.values()
            ],
            "lane_shape": list(self.lane_shape),
            "batch_sizes": [
                {"key": list(key), "batch_size": list(size)}
                for key, size in self.batch_sizes.items()
            ],
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Layout:
        """Return the layout that `to_record` gave."""
        leaves = (
            Leaf(
                tuple(item["key"]),
                tuple(item["shape"]),
                getattr(torch, item["dtype"].removeprefix("torch.")),
            )
            for item in record["leaves"]
        )
        sizes = {tuple(item["key"]): tuple(item["batch_size"]) for item in record["batch_sizes"]}
        return cls({leaf.name: leaf for leaf in leaves}, tuple(record["lane_shape"]), sizes)


def _walk(data: TensorDictBase, key: Key) -> Iterator[tuple[Key, Any]]:
    yield key, data
    for name, value in data.items():
        if isinstance(value, TensorDictBase):
            yield from _walk(value, (*key, name))
        else:
            yield (*key, name), value


def _unfit(name: str, what: str) -> SchemaError:
    return SchemaError(
        f"field {name!r}: {what}", field=name, expected="a tensor or a TensorDict", got=what
    )
