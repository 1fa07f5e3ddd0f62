"""What must be restored for a resumed run to go on, item by item, and how to leave one out.

Left out means: after the restore it has the value that the freshly made script had.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torchrl_models import Parts

Get = Callable[[Parts], Any]
Put = Callable[[Parts, Any], None]


@dataclass(frozen=True)
class Item:
    """One thing to restore, and the run that shows it."""

    name: str
    run: str
    get: Get
    put: Put
    decides: bool = True
    """Whether the run's end depends on it; if not, only its own value is compared."""


def _state(path: str) -> tuple[Get, Put]:
    """An object with a state_dict."""
    return (
        lambda parts: copy.deepcopy(_reach(parts, path).state_dict()),
        lambda parts, value: _reach(parts, path).load_state_dict(copy.deepcopy(value)),
    )


def _attribute(path: str) -> tuple[Get, Put]:
    owner, _, name = path.rpartition(".")
    return (
        lambda parts: copy.deepcopy(getattr(_reach(parts, owner), name)),
        lambda parts, value: setattr(_reach(parts, owner), name, copy.deepcopy(value)),
    )


def _reach(parts: Parts, path: str) -> Any:
    found: Any = parts
    for part in path.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found


def _carrier(key: Any) -> tuple[Get, Put]:
    def put(parts: Parts, value: Any) -> None:
        parts.collector._carrier.set(key, value.clone())

    return lambda parts: parts.collector._carrier.get(key).clone(), put


def _simulator(name: str) -> tuple[Get, Put]:
    """The Gymnasium environment below."""

    def base(parts: Parts) -> Any:
        return getattr(parts.env.base_env._env.unwrapped, name)

    return (
        lambda parts: copy.deepcopy(base(parts)),
        lambda parts, value: setattr(parts.env.base_env._env.unwrapped, name, copy.deepcopy(value)),
    )


def _empty(parts: Parts, rows: Any) -> None:
    parts.buffer.storage._empty()


def _rows(parts: Parts) -> Any:
    storage = parts.buffer.storage
    return storage.get(slice(0, len(storage))).clone() if storage.initialized else None


ITEMS = (
    Item("policy", "random", *_state("policy")),
    Item("loss", "random", *_state("loss")),
    Item("optimizer", "random", *_state("optimizer")),
    Item("scheduler", "random", *_state("scheduler")),
    Item("target updater", "random", *_state("updater")),
    Item("exploration", "random", *_state("exploration")),
    Item("rows", "random", _rows, _empty),
    Item("writer cursor", "slices", *_attribute("buffer.writer._cursor")),
    Item("write count", "random", *_attribute("buffer.writer._write_count")),
    Item("last cursor", "slices", lambda p: p.buffer.storage._last_cursor_index,
         lambda p, v: p.buffer.storage._set_last_cursor(v), decides=False),
    Item("sampler's order", "without replacement", *_attribute("buffer.sampler._sample_list")),
    Item("sampler's length", "without replacement", *_attribute("buffer.sampler.len_storage")),
    Item("buffer's generator", "without replacement", lambda p: p.buffer._rng.get_state().clone(),
         lambda p, v: p.buffer._rng.set_state(v)),
    Item("frames", "random", *_attribute("collector._frames")),
    Item("iterations", "random", *_attribute("collector._iter"), decides=False),
    Item("trajectories", "slices", *_state("collector._traj_pool")),
    Item("trajectory under way", "slices", *_carrier(("collector", "traj_ids"))),
    Item("observation", "random", *_carrier("observation")),
    Item("step count", "random", *_carrier("step_count")),
    Item("statistics", "random", *_state("env.transform.1")),
    Item("user's transform", "random", *_attribute("env.transform.2.calls")),
    Item("simulator", "random", *_simulator("state")),
    Item("simulator's generator", "random", *_simulator("_np_random")),
    Item("torch generator", "random", lambda p: torch.get_rng_state(),
         lambda p, v: torch.set_rng_state(v)),
)  # fmt: skip
