"""What is taken apart, what is left alone, and who knows how to save the rest.

Everything that is named nowhere here and is no plain value is an obstacle.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium
from gymnasium import spaces
from gymnasium.envs.toy_text import CliffWalkingEnv, FrozenLakeEnv, TaxiEnv
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.wrappers.utils import RunningMeanStd

from pyengine.capture.protocol import type_name
from pyengine.capture.rngs import rng_kind
from pyengine.integrations.gymnasium.chains import ChainAdapter
from pyengine.integrations.gymnasium.simulators import (
    AleAdapter,
    MujocoDataAdapter,
    MujocoModelAdapter,
)
from pyengine.integrations.gymnasium.vector import AsyncAdapter


class Adapter(Protocol):
    """Saves objects whose state is no attribute.

    `rank` orders the way back, lowest first; `held` names attributes that are saved besides.
    """

    name: str
    rank: int
    held: frozenset[str]

    def matches(self, value: Any) -> bool: ...

    def get(self, value: Any) -> Any:
        """Return the state: plain, independent of `value`. ObstacleError where it cannot."""

    def check(self, value: Any, state: Any) -> None:
        """Raise ValueError where `state` would not fit `value`; change nothing."""

    def set(self, value: Any, state: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Given:
    """Functions of the user's for the state of one object: `get(value)`, `set(value, state)`."""

    value: Any
    get: Callable[[Any], Any]
    set: Callable[[Any, Any], Any]


StateFunctions = tuple[Callable[[], Any], Callable[[Any], Any]]


@dataclass(frozen=True, slots=True)
class Rules:
    """Types are given as "module:qualified name" where their module need not be installed."""

    followed: tuple[type[Any], ...] = ()
    """Classes whose instances consist of their attributes."""
    skipped_types: frozenset[str] = frozenset()
    """Values that decide nothing: renderers, files of results, descriptions."""
    skipped_packages: frozenset[str] = frozenset()
    skipped_names: Mapping[type[Any], frozenset[str]] = field(default_factory=dict)
    """Attributes that decide nothing, by the class that defines them."""
    settled: Mapping[type[Any], Mapping[str, Any]] = field(default_factory=dict)
    """Attributes that get a fixed value on the way back, where the instance has them."""
    fixed: Mapping[type[Any], frozenset[str]] = field(default_factory=dict)
    """Large attributes that never change: compared on the way back, not saved."""
    clocks: Mapping[type[Any], frozenset[str]] = field(default_factory=dict)
    """Readings of time.perf_counter(): the time since then goes on."""
    outputs: Mapping[type[Any], frozenset[str]] = field(default_factory=dict)
    """Attributes that only tell what was: saved where they can be, no obstacle where not."""
    beside_methods: Mapping[type[Any], frozenset[str]] = field(default_factory=dict)
    """Attributes saved besides what an object with get_state() gives, and set after set_state."""
    adapters: tuple[Adapter, ...] = ()
    given: tuple[Given, ...] = ()
    is_partial: bool = False
    """Save the rest of what has obstacles, and list them."""

    def is_skipped(self, value: Any) -> bool:
        """Return whether `value`, or everything in the container `value`, is of a skipped type."""
        if type(value) in (list, tuple):
            return bool(value) and all(map(self.is_skipped, value))
        if type(value) is dict:
            return bool(value) and all(map(self.is_skipped, value.values()))
        name = type_name(value)
        return name in self.skipped_types or name.partition(".")[0] in self.skipped_packages

    def adapter(self, value: Any) -> Adapter | None:
        """Return who saves `value`."""
        return next((adapter for adapter in self.adapters if adapter.matches(value)), None)

    def functions(self, value: Any) -> StateFunctions | None:
        """Return what gives and takes the state of `value`: the user's functions, its methods."""
        for one in self.given:
            if one.value is value:
                return functools.partial(one.get, value), functools.partial(one.set, value)
        if rng_kind(value) is None and _has_state_methods(value):
            return value.get_state, value.set_state
        return None


def named(table: Mapping[type[Any], frozenset[str]], value: Any) -> set[str]:
    """Return the names that `table` gives for `value` under any of its classes."""
    return {name for kind, names in table.items() if isinstance(value, kind) for name in names}


def _has_state_methods(value: Any) -> bool:
    """Return whether the class of `value` has get_state() and set_state(state)."""
    kind = type(value)
    get, put = getattr(kind, "get_state", None), getattr(kind, "set_state", None)
    if not (inspect.isfunction(get) and inspect.isfunction(put)):
        return False
    return _takes(get, 1) and _takes(put, 2)


def _takes(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


CHECKER = gymnasium.wrappers.PassiveEnvChecker
STATISTICS = gymnasium.wrappers.RecordEpisodeStatistics
VECTOR_STATISTICS = gymnasium.wrappers.vector.RecordEpisodeStatistics

GYMNASIUM = Rules(
    followed=(gymnasium.Env, VectorEnv, spaces.Space, RunningMeanStd),
    skipped_types=frozenset(
        {
            "gymnasium.envs.registration:EnvSpec",
            "gymnasium.envs.mujoco.mujoco_rendering:MujocoRenderer",
        }
    ),
    skipped_packages=frozenset({"pygame"}),
    skipped_names={
        gymnasium.Env: frozenset(
            {"spec", "metadata", "_ezpickle_args", "_ezpickle_kwargs", "_saved_kwargs"}
        ),
        gymnasium.Wrapper: frozenset({"_cached_spec", "_metadata"}),
        VectorEnv: frozenset({"spec", "metadata", "env_fns"}),
        VectorWrapper: frozenset({"_metadata"}),
    },
    # The checker compares the first steps with data of the steps before them; it warns at most.
    settled={CHECKER: {"_previous_data": None, "checked_data_reuse": True, "checked_step": True}},
    fixed={kind: frozenset({"P"}) for kind in (CliffWalkingEnv, FrozenLakeEnv, TaxiEnv)},
    clocks={
        STATISTICS: frozenset({"episode_start_time"}),
        VECTOR_STATISTICS: frozenset({"episode_start_times"}),
    },
    beside_methods={
        gymnasium.Env: frozenset(
            {"_np_random", "_np_random_seed", "action_space", "observation_space"}
        ),
        gymnasium.Wrapper: frozenset({"env", "_action_space", "_observation_space"}),
    },
    adapters=(
        AleAdapter(),
        MujocoModelAdapter(),
        MujocoDataAdapter(),
        ChainAdapter(),
        AsyncAdapter(),
    ),
)
