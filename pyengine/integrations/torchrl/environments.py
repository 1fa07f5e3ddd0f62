"""The state of a TorchRL environment, its transforms included, taken and put back between steps.

An environment is followed down: transforms one by one, the environments of a SerialEnv, and of a
wrapped Gymnasium environment the whole stack below. Whatever is not known there is an obstacle,
named; then environments are reset on resume, and only statistics of transforms are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torchrl.envs import (
    EnvBase,
    GymEnv,
    GymWrapper,
    ObservationNorm,
    PendulumEnv,
    SerialEnv,
    Transform,
    TransformedEnv,
    VecNorm,
)
from torchrl.envs.transforms import VecNormV2

from pyengine.capture.protocol import state_methods, type_text
from pyengine.capture.tree import Encoder
from pyengine.errors import CaptureError, StateMismatchError

STATISTICS: tuple[type[Any], ...] = (ObservationNorm, VecNorm, VecNormV2)
"""Transforms whose state outlives an episode."""

_WITHOUT_STATE: tuple[type[Any], ...] = (PendulumEnv,)
"""Environments whose state is in the data that goes in and comes out."""

_OF_LIBRARY = "torchrl."
_OF_MODULES = frozenset(vars(torch.nn.Module()))


class EnvironmentParts:
    """The parts of an environment that carry state, by their path, and what stands in the way."""

    def __init__(self, env: EnvBase) -> None:
        self.obstacles: list[str] = []
        self._simulators: dict[str, Any] = {}
        self._transforms: dict[str, Transform] = {}
        self._follow(env, "env")
        if not self.obstacles:
            self._rehearse()

    def _follow(self, env: Any, path: str) -> None:
        if isinstance(env, TransformedEnv):
            for place, transform in _each(env.transform, f"{path}.transform"):
                self._transforms[place] = transform
            self._follow(env.base_env, f"{path}.base_env")
        elif type(env) is SerialEnv:
            if env.is_closed:
                env.start()
            for index, inner in enumerate(env._envs):
                self._follow(inner, f"{path}.{index}")
        elif callable(getattr(env, "get_state", None)) and callable(
            getattr(env, "set_state", None)
        ):
            self._simulators[path] = state_methods(env)
        elif type(env) in (GymEnv, GymWrapper):
            from pyengine.integrations.gymnasium import EnvState

            stack = EnvState(env._env)
            self._simulators[path] = stack
            self.obstacles += [f"{path}: {obstacle}" for obstacle in stack.obstacles]
        elif type(env) not in _WITHOUT_STATE:
            self.obstacles.append(
                f"{path}: {type_text(env)} is not known; give it get_state() and set_state(state)"
            )

    def _rehearse(self) -> None:
        for path, transform in self._transforms.items():
            try:
                Encoder("environment").encode(_transform_state(transform, path))
            except CaptureError as error:
                self.obstacles.append(str(error))

    def simulators(self) -> dict[str, Any]:
        """Return the state of environments by path; CaptureError where an obstacle has come up."""
        found = {}
        for path, simulator in self._simulators.items():
            get: Callable[[], Any] = getattr(simulator, "get_state", None) or simulator.get
            found[path] = get()
        return found

    def transforms(self) -> dict[str, Any]:
        """Return the state of transforms by path."""
        return {path: _transform_state(one, path) for path, one in self._transforms.items()}

    def check(self, state: dict[str, Any]) -> None:
        """Raise StateMismatchError where the state is of other environments."""
        for what, live in (("simulators", self._simulators), ("transforms", self._transforms)):
            here = [f"{path}: {type_text(one)}" for path, one in live.items()]
            if what in state and list(live) != list(state[what]):
                raise StateMismatchError(
                    f"the environment has other {what}", component="environment",
                    expected=here, got=list(state[what]),
                )  # fmt: skip
        for path, saved in state.get("simulators", {}).items():
            check = getattr(self._simulators[path], "check_state", None)
            if check is not None:
                check(saved)

    def set_simulators(self, state: dict[str, Any]) -> None:
        """Put environments back."""
        for path, saved in state.items():
            simulator = self._simulators[path]
            put: Callable[[Any], Any] = getattr(simulator, "set_state", None) or simulator.set
            put(saved)

    def set_transforms(self, state: dict[str, Any], *, only_statistics: bool) -> None:
        """Put transforms back; those of an episode that goes on, too, or statistics alone."""
        for path, saved in state.items():
            transform = self._transforms[path]
            if not only_statistics or isinstance(transform, STATISTICS):
                _set_transform_state(transform, saved)


def _each(transform: Any, path: str) -> Iterator[tuple[str, Transform]]:
    """Yield a transform, or those that it is composed of."""
    inner = getattr(transform, "transforms", None)
    if inner is None:
        yield path, transform
        return
    for index, one in enumerate(inner):
        yield from _each(one, f"{path}.{index}")


def _transform_state(transform: Any, path: str) -> dict[str, Any]:
    if callable(getattr(transform, "get_state", None)):
        return {"own": transform.get_state()}
    state = {"tensors": _plain(transform.state_dict()), "attributes": {}}
    if not type(transform).__module__.startswith(_OF_LIBRARY):
        # A class of the user's may count in plain attributes; the library's keep buffers.
        held = {k: v for k, v in vars(transform).items() if k not in _OF_MODULES}
        state["attributes"] = {
            name: value
            for name, value in held.items()
            if isinstance(value, (bool, int, float, str, torch.Tensor, np.ndarray))
        }
    return state


def _set_transform_state(transform: Any, state: dict[str, Any]) -> None:
    if "own" in state:
        transform.set_state(state["own"])
        return
    if state["tensors"]:
        transform.load_state_dict(state["tensors"])
    for name, value in state["attributes"].items():
        setattr(transform, name, value)


def _plain(value: Any) -> Any:
    """Return a state_dict with the TensorDicts in it as dicts."""
    if isinstance(value, TensorDictBase):
        return {key: _plain(item) for key, item in value.items()}
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value
