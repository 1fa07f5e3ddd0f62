"""A buffer over a RingStorage beside one over TorchRL's own storage, given and asked the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

from pyengine.integrations.torchrl import RingStorage


class Pair:
    """Two buffers; whatever is called on the pair is called on both, and compared."""

    def __init__(self, make: Callable[[Any], Any], size: int, *, seed: int = 0, **storage: Any):
        self.stock = make(LazyTensorStorage(size, **storage))
        self.ours = make(RingStorage(size, **storage))
        self._seed = seed

    def both(self, call: Callable[[Any], Any]) -> Any:
        """Call with each buffer and the same generators; return what both return."""
        self._seed += 1
        results = []
        for buffer in (self.stock, self.ours):
            torch.manual_seed(self._seed)
            results.append(call(buffer))
        same(*results)
        assert len(self.stock) == len(self.ours)
        assert self.stock.write_count == self.ours.write_count
        assert self.stock.storage.shape == self.ours.storage.shape
        return results[1]

    def extend(self, data: Any) -> None:
        self.both(lambda buffer: buffer.extend(data.clone()))


def same(one: Any, other: Any) -> None:
    """Assert that two results are equal bit for bit, in dtypes, shapes and batch sizes."""
    if isinstance(one, TensorDict):
        assert isinstance(other, TensorDict)
        assert one.batch_size == other.batch_size
        assert one.device == other.device
        assert set(one.keys()) == set(other.keys())
        for key in one.keys():  # noqa: SIM118  a TensorDict iterates over elements
            same(one.get(key), other.get(key))
    elif isinstance(one, torch.Tensor):
        other = other.clone()
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert torch.equal(one, other) or torch.allclose(one, other, 0, 0, equal_nan=True)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            same(value, other[key])
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    else:
        assert one == other


def steps(count: int, first: int = 0, lanes: tuple[int, ...] = ()) -> TensorDict:
    """Return `count` elements that tell where they come from, nested, of several dtypes."""
    number = torch.arange(first, first + count)
    wide = number.reshape(count, *(1 for _ in lanes)).expand(count, *lanes)
    return TensorDict(
        {
            "observation": wide[..., None].float() + torch.arange(3) / 8,
            "pixels": (wide[..., None, None] % 251).to(torch.uint8).expand(*wide.shape, 2, 2),
            "half": wide.to(torch.bfloat16),
            "collector": {"traj_ids": wide // 7},
            "next": {
                "reward": wide[..., None].double(),
                "done": (wide[..., None] % 7 == 6),
                "truncated": torch.zeros(*wide.shape, 1, dtype=torch.bool),
            },
        },
        batch_size=(count, *lanes),
    )
