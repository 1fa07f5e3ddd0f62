"""What an object is when somebody comes upon it in an attribute: state of a sort, a thing to look
into, or nothing of interest. Decided by its type, once for each type."""

from __future__ import annotations

import re
import sys
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

from pyengine.capture.lazy_torch import is_torch_loaded
from pyengine.capture.rngs import rng_kind

NOTHING = ""
"""Numbers, texts, arrays, functions, files, other libraries' machinery: not looked into."""

CONTAINER = "container"
OBJECT = "object"
MODULE = "module"
OPTIMIZER = "optimizer"
SCHEDULER = "scheduler"
SCALER = "gradient scaler"
GENERATOR = "random generator"
NORMALISER = "normaliser"
SAMPLER = "sampler"
STATE = "object with methods for its state"
PARAMETER = "parameter"
RING = "replay buffer"
SPACE = "space"
"""A space of Gymnasium: it draws from a generator of its own."""

STATE_SORTS = frozenset(
    {MODULE, OPTIMIZER, SCHEDULER, SCALER, GENERATOR, NORMALISER, SAMPLER, STATE, PARAMETER, RING}
)

_CONTAINERS: tuple[type[Any], ...] = (
    dict, list, tuple, deque, set, frozenset, types.SimpleNamespace,
)  # fmt: skip
_BUILT_IN: frozenset[type[Any]] = frozenset({*_CONTAINERS, OrderedDict, defaultdict})
_PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None), range, slice)
_MACHINERY = frozenset(sys.stdlib_module_names) | {
    "torch", "numpy", "gymnasium", "gym", "pyengine", "tensorboard", "wandb", "tqdm", "rich",
    "matplotlib", "pandas", "ray", "jax", "tensordict",
}  # fmt: skip
_OF_ENVIRONMENTS = ("gymnasium", "gym")
_SPACES = ("action_space", "observation_space", "action_spec", "observation_spec")
_PAIRS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))
_NORMALISER = re.compile(r"normali[sz]|runningmean|runningstat|runningnorm", re.IGNORECASE)
_SAMPLER = re.compile(r"sampler", re.IGNORECASE)

known: dict[type[Any], str] = {}
"""Sorts by type. Types are few and live long."""


def sort_of(value: Any) -> str:
    """Return the sort of a value."""
    kind = type(value)
    sort = known.get(kind)
    if sort is None:
        sort = known[kind] = _sort(kind, value)
    return sort


def _sort(kind: type[Any], value: Any) -> str:
    if issubclass(kind, _PLAIN) or isinstance(value, type):
        return NOTHING
    if kind in _BUILT_IN:
        return CONTAINER
    if rng_kind(value) is not None:
        return GENERATOR
    sort = _sort_of_torch(kind) if is_torch_loaded() else None
    if sort is not None:
        return sort
    if kind.__module__.startswith("gymnasium.spaces"):
        return SPACE
    if any(base.__module__ == "pyengine.replay.ring" for base in kind.__mro__):
        return RING
    package = kind.__module__.partition(".")[0]
    if package in _MACHINERY or _is_environment(kind, value):
        return NOTHING
    if _NORMALISER.search(kind.__name__):
        return NORMALISER
    if any(all(callable(getattr(kind, name, None)) for name in pair) for pair in _PAIRS):
        return SAMPLER if _SAMPLER.search(kind.__name__) else STATE
    if issubclass(kind, _CONTAINERS):
        return CONTAINER
    return OBJECT if hasattr(value, "__dict__") else NOTHING


def _is_environment(kind: type[Any], value: Any) -> bool:
    """Whether it is stepped and reset, and says what goes in or comes out; others are learners."""
    if not (hasattr(kind, "step") and hasattr(kind, "reset")):
        return False
    if any(base.__module__.partition(".")[0] in _OF_ENVIRONMENTS for base in kind.__mro__):
        return True
    own = getattr(value, "__dict__", {})
    return any(hasattr(kind, name) or name in own for name in _SPACES)


def _sort_of_torch(kind: type[Any]) -> str | None:
    import torch

    if issubclass(kind, torch.nn.Module):
        return MODULE
    if issubclass(kind, torch.nn.Parameter):
        return PARAMETER
    if issubclass(kind, torch.optim.Optimizer):
        return OPTIMIZER
    schedulers = torch.optim.lr_scheduler
    if issubclass(kind, (schedulers.LRScheduler, schedulers.ReduceLROnPlateau)):
        return SCHEDULER
    if issubclass(kind, torch.amp.GradScaler):
        return SCALER
    return None
