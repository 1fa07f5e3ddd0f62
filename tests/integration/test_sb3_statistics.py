"""A normaliser here and filters in worker processes come back, all of them, or it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import stable_baselines3 as sb3
from gymnasium.wrappers import NormalizeObservation
from sb3_models import ON_POLICY, make
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecNormalize

from pyengine import open_run
from pyengine.integrations.gymnasium import StatefulEnv
from pyengine.integrations.sb3 import SnapshotCallback

RAW = np.array([0.3, -1.0, 0.02, 0.7], np.float32)
QUICK = {"every_steps": 16, "budget": None, "when_busy": "wait"}


class Filter(NormalizeObservation):
    """A filter whose numbers can be asked for."""

    def numbers(self) -> dict[str, Any]:
        """Return all attributes of the statistics."""
        return vars(self.obs_rms)

    def look(self, raw: Any) -> Any:
        """Normalise one observation, which changes nothing."""
        return (raw - self.obs_rms.mean) / np.sqrt(self.obs_rms.var + self.epsilon)


class Connected(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Holds something that nobody can save."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.steps = 0
        self.line = iter([1])

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.env.step(action)


def filters(*wrappers: Any) -> VecEnv:
    def wrap(env: Any) -> Any:
        env = Filter(env)
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    workers = make_vec_env(
        "CartPole-v1", 2, seed=5, wrapper_class=wrap, vec_env_cls=SubprocVecEnv,
        vec_env_kwargs={"start_method": "fork"},
    )  # fmt: skip
    return VecNormalize(workers)


def numbers_of(venv: VecEnv) -> list[Any]:
    """Return every number that normalises something, in all processes."""
    assert isinstance(venv, VecNormalize)
    ours = [vars(venv.obs_rms), vars(venv.ret_rms), venv.returns, venv.normalize_obs(RAW)]
    return [*ours, venv.env_method("numbers"), venv.env_method("look", RAW)]


def train(run_dir: Path, steps: int, *wrappers: Any) -> list[Any]:
    """Train a tiny PPO; return the numbers at the end."""
    venv = filters(*wrappers)
    try:
        model = make(sb3.PPO, venv, **ON_POLICY)
        model.learn(steps, callback=SnapshotCallback(run_dir, **QUICK))
        return numbers_of(venv)
    finally:
        venv.close()


def left_out(run_dir: Path) -> dict[str, str]:
    """Return what the newest snapshot says that it leaves out, and why."""
    components = open_run(run_dir).snapshots[-1].components
    return {one.name: one.reason for one in components if one.status == "excluded"}


def test_a_filter_that_is_not_seen_is_complained_of_and_a_seen_one_comes_back(
    tmp_path: Path, capsys: Any
) -> None:
    train(tmp_path / "unseen", 64)
    assert "cannot be saved" in capsys.readouterr().out
    assert "StatefulEnv" in left_out(tmp_path / "unseen")["environment"]

    there = train(tmp_path / "run", 64, StatefulEnv)
    assert "cannot be saved" not in capsys.readouterr().out
    assert "environment" not in left_out(tmp_path / "run")
    here = train(tmp_path / "run", 64, StatefulEnv)  # at its total: nothing but a restore
    np.testing.assert_equal(here, there)
    assert len({tuple(worker["mean"]) for worker in here[4]}) == 2, "each worker has its own"


def test_what_is_left_out_on_purpose_is_named_and_the_rest_comes_back(
    tmp_path: Path, capsys: Any
) -> None:
    def partial(env: Any) -> Any:
        return StatefulEnv(env, partial=True)

    train(tmp_path / "refused", 32, Connected, StatefulEnv)
    assert "line: a list_iterator" in left_out(tmp_path / "refused")["environment"]

    capsys.readouterr()
    there = train(tmp_path / "run", 64, Connected, partial)
    assert "saved in part, NOT saved: " in capsys.readouterr().out
    assert "Connected.line: a list_iterator" in left_out(tmp_path / "run")["environment in part"]
    here = train(tmp_path / "run", 64, Connected, partial)
    text = capsys.readouterr().out
    assert "saved in part" in text
    assert "reset" not in text
    np.testing.assert_equal(here, there)
