"""Objects that together need every kind of component and every kind of node of a tree."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import random
from typing import Any

import numpy as np
import torch
from torch import nn

Point = collections.namedtuple("Point", "x y")


class Mode(enum.Enum):
    TRAIN = 1


@dataclasses.dataclass
class Stats:
    best: float
    history: list[int]


class Teacher:
    """Gives its state by a method of its own."""

    def get_state(self) -> dict[str, Any]:
        return {"level": 3, "table": np.arange(3)}

    def set_state(self, state: dict[str, Any]) -> None:
        raise AssertionError("this run is read, never restored")


class Tied(nn.Module):
    """Two names for one weight, a buffer of bfloat16, and an entry that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("scale", torch.tensor([1.5, -2.0], dtype=torch.bfloat16))

    def get_extra_state(self) -> dict[str, Any]:
        return {"calls": 7, "mask": torch.tensor([True, False])}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        raise AssertionError("this run is read, never restored")


class OwnSgd(torch.optim.SGD):
    """An optimizer that brings a state_dict() of its own."""

    def state_dict(self) -> dict[str, Any]:
        return {"mine": 1, **super().state_dict()}


def everything() -> dict[str, Any]:
    """Return a value of each kind of node."""
    shared = [1, 2]
    cycle: dict[str, Any] = {"name": "cycle/~"}
    cycle["self"] = cycle
    objects = np.empty((1, 2), dtype=object)
    objects[0, 0], objects[0, 1] = shared, "text"
    return {
        "numbers": list(range(100)),
        "floats": [0.5] * 100,
        "scalars": [None, True, -(2**63), 2**70, -(2**70), 1.5, "täxt", "\ud800", 1 + 2j],
        "not finite": [math.inf, -math.inf],
        "range": range(9, 0, -2),
        "bytes": [b"short", b"long" * 100, bytearray(b"short"), bytearray(b"long" * 100)],
        "sequences": [(1, (2,)), torch.Size([2, 3]), collections.deque([1, 2], maxlen=3)],
        "sets": [{1, 2}, frozenset({("a", 1), ("b", 2)})],
        "dicts": [
            {"$": 1, "a/b": shared},
            {1: "x", 2: shared},
            {(1, 2): "pair", None: 0},
            collections.OrderedDict(b=1, a=2),
            collections.Counter("aab"),
            collections.defaultdict(list, a=[1]),
        ],
        "shared": [shared, shared],
        "cycle": cycle,
        "objects": objects,
        "arrays": [
            np.arange(6, dtype=">i4").reshape(2, 3).T,
            np.array([1 + 2j], dtype=np.complex64),
            np.array([("a", 1.5)], dtype=[("name", "<U2"), ("v", "<f4", (2,))]),
            np.array(["2026-01-01"], dtype="M8[D]"),
            np.zeros((0, 3), np.float16),
        ],
        "numpy": [np.float32(0.1), np.datetime64("2026-01-01", "s"), np.dtype("<f4")],
        "tensors": [
            torch.arange(6).reshape(2, 3).t(),
            torch.tensor(1 - 1j),
            nn.Parameter(torch.ones(2)),
        ],
        "torch": [torch.bfloat16, torch.device("cpu")],
        "types": [Stats(1.5, [1, 2]), Point(1, [2]), Mode.TRAIN, Teacher()],
        "generators": [
            np.random.default_rng(3),
            random.Random(4),
            torch.Generator().manual_seed(5),
        ],
    }


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return what the page says of a generator: its state, and the seeds of its children."""
    state = dict(generator.bit_generator.state)
    if int(np.__version__.split(".")[0]) >= 2:
        seeds: Any = generator.bit_generator.seed_seq
        state["seed_sequence"] = {
            "entropy": seeds.entropy,
            "spawn_key": list(seeds.spawn_key),
            "pool_size": seeds.pool_size,
            "n_children_spawned": seeds.n_children_spawned,
        }
    return state


def expected_tree(value: Any) -> Any:
    """Return what a reader without our classes makes of `everything()`."""
    value = dict(value)
    here = __name__
    value["tensors"] = [tensor.detach().numpy() for tensor in value["tensors"]]
    value["torch"] = ["torch.bfloat16", "cpu"]
    generator, twister, torch_generator = value["generators"]
    version, words, gauss = twister.getstate()
    value["generators"] = [
        {"$": "rng", "kind": "numpy.Generator", "state": generator_state(generator)},
        {"$": "rng", "kind": "python.Random",
         "state": {"version": version, "words": np.array(words, np.uint32), "gauss": gauss}},
        {"$": "rng", "kind": "torch.Generator",
         "state": {"device": "cpu", "bytes": torch_generator.get_state().numpy()}},
    ]  # fmt: skip
    value["types"] = [
        {"$": "dataclass", "type": f"{here}:Stats", "fields": {"best": 1.5, "history": [1, 2]}},
        {"$": "namedtuple", "type": f"{here}:Point", "fields": {"x": 1, "y": [2]}},
        f"{here}:Mode.TRAIN",
        {"$": "object", "type": f"{here}:Teacher", "how": "get_state",
         "state": Teacher().get_state()},
    ]  # fmt: skip
    return value
