"""What decides the future of a Stable-Baselines3 model, as objects for `engine.track`.

Networks and optimizers are tracked as they are. Everything else that changes while a model learns
is plain values in attributes; what the constructor was given is a setting of the script and stays.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.noise import ActionNoise, VectorizedActionNoise

from pyengine.capture.tree import Encoder
from pyengine.errors import CaptureError, StateMismatchError

COUNTERS = (
    "num_timesteps", "_episode_num", "_n_updates", "_n_calls", "exploration_rate",
    "_current_progress_remaining", "_last_obs", "_last_original_obs", "_last_episode_starts",
    "_last_lstm_states", "ep_info_buffer", "ep_success_buffer",
)  # fmt: skip
"""Attributes that the algorithms themselves move on."""

_OWNED = frozenset(
    {
        # Set anew by the constructor or by learn(), or saved as a component of its own.
        "policy", "policy_class", "policy_aliases", "replay_buffer", "rollout_buffer", "env",
        "_vec_normalize_env", "logger", "_logger", "_custom_logger", "device", "action_space",
        "observation_space", "lr_schedule", "exploration_schedule", "clip_range", "clip_range_vf",
        "start_time", "n_envs", "action_noise", "_total_timesteps", "_num_timesteps_at_start",
        "_stats_window_size", "q_net", "q_net_target", "actor", "actor_target", "critic",
        "critic_target", "batch_norm_stats", "batch_norm_stats_target", "actor_batch_norm_stats",
        "actor_batch_norm_stats_target", "critic_batch_norm_stats",
        "critic_batch_norm_stats_target", "replay_buffer_class", "rollout_buffer_class",
        "target_entropy", "quantile_loss", "quantile_net", "quantile_net_target",
    }
)  # fmt: skip


class ModelState:
    """The plain attributes of a model; `unsaved` names those that cannot be saved, and why."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self._model = model
        self._passed = _OWNED | constructor_parameters(type(model)) | frozenset(COUNTERS)
        self.unsaved: dict[str, str] = {}
        self.get_state()

    def get_state(self) -> dict[str, Any]:
        """Return the attributes by name: those of the library and the user's own."""
        held = {name: getattr(self._model, name) for name in COUNTERS if hasattr(self._model, name)}
        others = {
            name: value for name, value in vars(self._model).items() if not _is_of_torch(value)
        }
        return held | plain_values(others, self._passed, "", self.unsaved)

    def set_state(self, state: dict[str, Any]) -> None:
        """Set the attributes; the next rollout goes on from there."""
        for name, value in state.items():
            is_librarys = name in COUNTERS
            setattr(self._model, name, _to(value, self._model.device) if is_librarys else value)
        self._model._num_timesteps_at_start = self._model.num_timesteps


class ExplorationState:
    """What exploration draws from besides the process's generators.

    Action noise of each environment, the matrices of state-dependent exploration, and the
    generators inside the action space.
    """

    def __init__(self, model: BaseAlgorithm) -> None:
        self._model = model

    def get_state(self) -> dict[str, Any]:
        """Return arrays, tensors and states of generators."""
        return {
            "noise": [dict(_arrays_of(noise)) for noise in self._noises()],
            "matrices": [_matrices_of(distribution) for distribution in self._distributions()],
            "action_space": [rng.bit_generator.state for rng in _generators(self._space())],
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise StateMismatchError where parts differ in number or a generator's state is none."""
        here = self.get_state()
        for name, parts in here.items():
            if len(parts) != len(state[name]):
                raise StateMismatchError(
                    f"exploration: {len(parts)} of {name!r} here, {len(state[name])} there",
                    component="exploration",
                    expected=len(parts),
                    got=len(state[name]),
                )
        for rng, saved in zip(_generators(self._space()), state["action_space"], strict=True):
            type(rng.bit_generator)().state = saved

    def set_state(self, state: dict[str, Any]) -> None:
        """Put all of it back."""
        for noise, arrays in zip(self._noises(), state["noise"], strict=True):
            for name, value in arrays.items():
                setattr(noise, name, value)
        for distribution, matrices in zip(self._distributions(), state["matrices"], strict=True):
            for name, value in matrices.items():
                setattr(distribution, name, _to(value, self._model.device))
        for rng, saved in zip(_generators(self._space()), state["action_space"], strict=True):
            rng.bit_generator.state = saved

    def _space(self) -> spaces.Space[Any]:
        return self._model.action_space

    def _noises(self) -> list[ActionNoise]:
        noise = getattr(self._model, "action_noise", None)
        if isinstance(noise, VectorizedActionNoise):
            return list(noise.noises)
        return [noise] if noise is not None else []

    def _distributions(self) -> list[StateDependentNoiseDistribution]:
        found = (vars(module).get("action_dist") for module in self._model.policy.modules())
        return [one for one in found if isinstance(one, StateDependentNoiseDistribution)]


def components(model: BaseAlgorithm) -> dict[str, Any]:
    """Return networks, optimizers and free tensors of a model by name.

    Among them networks that a class of one's own has beside the policy, as `model.<attribute>`.
    """
    found: dict[str, Any] = {"policy": model.policy}
    seen: set[int] = set()
    owners: list[tuple[str, Any]] = [("", model), ("", model.policy)]
    owners += [(name, module) for name, module in model.policy.named_modules() if name]
    for prefix, owner in owners:
        for name, value in vars(owner).items():
            if isinstance(value, torch.optim.Optimizer) and id(value) not in seen:
                seen.add(id(value))
                found[f"{prefix}.{name}" if prefix else name] = value
    of_policy = {id(tensor) for tensor in _tensors_of(model.policy)}
    for name, value in vars(model).items():
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif isinstance(value, torch.nn.Module) and any(
            id(tensor) not in of_policy for tensor in _tensors_of(value)
        ):
            found[f"model.{name}"] = value
    return found


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def constructor_parameters(kind: type[Any]) -> set[str]:
    """Return the names of all parameters of a class's constructors, its bases' included."""
    names: set[str] = set()
    for base in kind.__mro__:
        init = vars(base).get("__init__")
        if init is not None and base is not object:
            names.update(inspect.signature(init).parameters)
    return names


def plain_values(
    values: Mapping[str, Any], passed: Collection[str], prefix: str, unsaved: dict[str, str]
) -> dict[str, Any]:
    """Return what can be saved, names in `passed` aside; `unsaved` gets the rest, and why."""
    found = {}
    for name, value in values.items():
        if name in passed:
            continue
        try:
            Encoder(name).encode(value)
        except CaptureError as error:
            unsaved[prefix + name] = str(error)
        else:
            found[name] = value
    return found


def _is_of_torch(value: Any) -> bool:
    return isinstance(value, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor))


def _to(value: Any, device: torch.device) -> Any:
    """Move tensors to where the model is now, which need not be where they were saved."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        moved = [_to(item, device) for item in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
    return value


def _arrays_of(noise: ActionNoise) -> Iterator[tuple[str, Any]]:
    """Yield what a noise process carries from step to step; its parameters stay."""
    settings = {f"_{name}" for name in constructor_parameters(type(noise))}
    for name, value in vars(noise).items():
        if isinstance(value, np.ndarray) and name not in settings:
            yield name, value


def _matrices_of(distribution: StateDependentNoiseDistribution) -> dict[str, Any]:
    names = ("exploration_mat", "exploration_matrices")
    return {name: getattr(distribution, name) for name in names if hasattr(distribution, name)}


def _generators(space: spaces.Space[Any]) -> Iterator[np.random.Generator]:
    """Yield the generators of a space and of the spaces in it, in a fixed order."""
    yield space.np_random
    inner: Any = getattr(space, "spaces", ())
    for one in inner.values() if isinstance(inner, dict) else inner:
        yield from _generators(one)
