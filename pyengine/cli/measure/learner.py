"""What a loop like training is made of: rows, and a network with Adam of a given size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine.format.schema import Schema
from pyengine.replay.batch import Batch
from pyengine.replay.plan import numpy_dtype

BATCH = 64
_FEATURES = 64
_WIDEST = 2048
_BYTES_PER_PARAMETER = 12
"""A parameter and Adam's two moments, float32 each."""

_NOISE_BYTES = 8 * 1024 * 1024
_MOST_NOISE_ROWS = 4096


class Learner:
    """A network with Adam whose tensors take `state_bytes`, within a few per cent, and its steps.

    It learns `reward` from the first numbers of the first field.
    """

    def __init__(self, schema: Schema, state_bytes: int) -> None:
        self._field = next(iter(schema))
        features = min(_FEATURES, prod(schema[self._field].shape))
        width, depth = _size(state_bytes // _BYTES_PER_PARAMETER, features)
        sizes = [features, *[width] * (depth + 1), 1]
        layers = itertools.starmap(torch.nn.Linear, itertools.pairwise(sizes))
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self._features = features

    @property
    def state_bytes(self) -> int:
        """Bytes of all tensors that a snapshot holds of it, once it has learned."""
        moments = (v for state in self.optimizer.state.values() for v in state.values())
        tensors = itertools.chain(self.model.parameters(), moments)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def learn(self, batch: Batch) -> None:
        """Make one step of training."""
        rows = batch[self._field].reshape(BATCH, -1)[:, : self._features]
        value = self.model(rows.float().nan_to_num().tanh()).squeeze(1)
        self.optimizer.zero_grad()
        (value - batch["reward"].float()).square().mean().backward()
        self.optimizer.step()


def _size(parameters: int, features: int) -> tuple[int, int]:
    """Return (width, square layers) of a network of about so many parameters, biases included."""
    depth = max(1, math.ceil(parameters / _WIDEST**2))
    linear = features + depth + 2
    root = math.sqrt(linear**2 + 4 * depth * max(0, parameters - 1))
    return max(1, round((root - linear) / (2 * depth))), depth


class Noise:
    """Rows of a schema that mean nothing: one block of them, again and again."""

    def __init__(self, schema: Schema) -> None:
        rng = np.random.default_rng(0)
        self._count = max(1, min(_MOST_NOISE_ROWS, _NOISE_BYTES // schema.row_bytes))
        self._block = {
            name: _noise(rng, (self._count, *field.shape), field.dtype, numpy_dtype(field))
            for name, field in schema.items()
        }

    def blocks(self, count: int) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield `count` rows in pieces, as `extend` takes them."""
        for first in range(0, count, self._count):
            size = min(self._count, count - first)
            yield {name: column[:size] for name, column in self._block.items()}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield single rows, without end, as `add` takes them."""
        for index in itertools.cycle(range(self._count)):
            yield {name: column[index] for name, column in self._block.items()}


def _noise(
    rng: np.random.Generator, shape: tuple[int, ...], name: str, dtype: np.dtype[Any]
) -> NDArray[Any]:
    if name == "bool":
        return rng.random(shape, np.float32) < 0.01
    if name == "bfloat16":  # the upper half of a float32
        return (rng.random(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.kind == "f":
        return rng.random(shape, np.float32).astype(dtype)
    return rng.integers(0, 100, shape, dtype)


def played_rows(env: Any) -> Iterator[dict[str, Any]]:
    """Yield the transitions of an environment under random actions, without end."""
    obs, _ = env.reset(seed=0)
    while True:
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        yield {
            "obs": obs,
            "action": action,
            "reward": float(reward),
            "next_obs": after,
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        }
        obs = env.reset()[0] if terminated or truncated else after
