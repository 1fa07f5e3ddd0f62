"""Whether a script's model is the one that a run was made with."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

import pyengine
from pyengine.capture.protocol import type_name
from pyengine.integrations.description import Description, newest

DESCRIPTION = Description(
    note="stable_baselines3",
    words={
        "algorithm": "algorithm",
        "policy": "policy class",
        "observation_space": "observation space",
        "action_space": "action space",
        "num_envs": "number of environments",
        "env_ids": "environment ids",
        "env_settings": "environments made with",
        "buffer": "replay buffer class",
        "buffer_size": "replay buffer size",
        "n_steps": "n_steps",
    },
    whose="the script's model",
    what="the model",
    maker="this callback",
)


def describe(model: BaseAlgorithm) -> dict[str, Any]:
    """Return what a run and a script must agree on, as plain JSON values."""
    venv = model.get_env()
    assert venv is not None
    found: dict[str, Any] = {
        "algorithm": type_name(model),
        "policy": type_name(model.policy),
        "observation_space": repr(model.observation_space),
        "action_space": repr(model.action_space),
        "num_envs": venv.num_envs,
        "env_ids": _env_ids(venv),
        "env_settings": _env_settings(venv),
    }
    buffer = getattr(model, "replay_buffer", None)
    if buffer is not None:
        found |= {"buffer": type_name(buffer), "buffer_size": int(buffer.buffer_size)}
    n_steps = getattr(model, "n_steps", None)
    if isinstance(n_steps, int):
        found["n_steps"] = n_steps
    return found


def saved_logs(run_dir: str) -> dict[str, int]:
    """Return the sizes of log files that the newest snapshot recorded."""
    if newest(run_dir) is None:
        return {}
    sizes: dict[str, int] = pyengine.load(run_dir, only=["logs"])["logs"]
    return sizes


def _env_ids(venv: VecEnv) -> list[str | None]:
    specs = venv.get_attr("spec")
    return [getattr(spec, "id", None) for spec in specs]


def _env_settings(venv: VecEnv) -> list[str]:
    """Return what each environment's constructor was given, as far as it is plain.

    A restored environment goes on with the run's values: where the script asks for others, it must
    not seem to get them.
    """
    return [_settings_of(spec) for spec in venv.get_attr("spec")]


def _settings_of(spec: Any) -> str:
    kwargs = dict(getattr(spec, "kwargs", None) or {})
    kwargs.pop("render_mode", None)
    kwargs["max_episode_steps"] = getattr(spec, "max_episode_steps", None)
    plain = {name: value for name, value in kwargs.items() if _is_plain(value)}
    return ", ".join(f"{name}={value!r}" for name, value in sorted(plain.items()))


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
