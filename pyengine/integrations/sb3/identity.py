"""Whether a script's model is the one that a run was made with."""

from __future__ import annotations

import os
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

import pyengine
from pyengine.capture.protocol import type_name
from pyengine.errors import ModelMismatchError

NOTE = "stable_baselines3"
"""Key of the manifest's notes under which the description lies."""

_WORDS = {
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
}


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


def check(run_dir: str, found: dict[str, Any]) -> None:
    """Raise ModelMismatchError that names both sides; reads the run, touches nothing."""
    saved = _newest(run_dir)
    if saved is None:
        return
    expected = saved.notes.get(NOTE)
    if not isinstance(expected, dict):
        raise ModelMismatchError(
            f"{run_dir} was not made by this callback; take another run directory",
            what="run", saved=None, found=found["algorithm"],
        )  # fmt: skip
    for key, text in _WORDS.items():
        if key in expected and expected[key] != found.get(key):
            raise ModelMismatchError(
                f"{run_dir}: the run has {text} {expected.get(key)}, the script's model "
                f"{found.get(key)}; make the model as the run was made, or take another run "
                "directory",
                what=key, saved=expected.get(key), found=found.get(key),
            )  # fmt: skip


def saved_logs(run_dir: str) -> dict[str, int]:
    """Return the sizes of log files that the newest snapshot recorded."""
    if _newest(run_dir) is None:
        return {}
    sizes: dict[str, int] = pyengine.load(run_dir, only=["logs"])["logs"]
    return sizes


def _newest(run_dir: str) -> pyengine.SnapshotInfo | None:
    if not os.path.isdir(run_dir) or not os.listdir(run_dir):
        return None
    snapshots = pyengine.open_run(run_dir).snapshots
    return snapshots[-1] if snapshots else None


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
