"""A script that does not fit the run is refused by name, and the run stays as it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import stable_baselines3 as sb3
from gymnasium import spaces
from sb3_models import OFF_POLICY, ON_POLICY, cartpole, make, pendulum
from stable_baselines3.common.env_util import make_vec_env

from pyengine import SnapshotEngine
from pyengine.errors import ModelMismatchError, ModelStateError
from pyengine.integrations.sb3 import SnapshotCallback

QUICK = {"every_steps": 20, "budget": None, "when_busy": "wait", "verbose": 0}


class Wider(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole, one observation more."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-9, 9, (5,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.append(observation, 0).astype(np.float32)


def dqn(venv: Any = None, **settings: Any) -> Any:
    return make(sb3.DQN, venv or cartpole(), **{**OFF_POLICY, **settings})


def listing(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return size, time of change and content of every file and directory below."""
    found = {}
    for directory, _, files in os.walk(folder):
        for path in (directory, *(os.path.join(directory, name) for name in files)):
            status = os.lstat(path)
            content = b""
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    content = file.read()
            found[path] = (status.st_size, status.st_mtime_ns, content)
    return found


OTHERS: dict[str, tuple[Callable[[], Any], str, str, str]] = {
    "algorithm": (lambda: make(sb3.PPO, cartpole(), **ON_POLICY), "algorithm", "DQN", "PPO"),
    "observations": (
        lambda: dqn(make_vec_env("CartPole-v1", 1, wrapper_class=Wider)),
        "observation_space", "(4,)", "(5,)",
    ),
    "actions": (lambda: dqn(make_vec_env("Acrobot-v1", 1)), "observation_space", "(4,)", "(6,)"),
    "another environment": (
        lambda: dqn(make_vec_env("CartPole-v0", 1)), "env_ids", "CartPole-v1", "CartPole-v0",
    ),
    "more environments": (lambda: dqn(cartpole(2)), "num_envs", "1", "2"),
    "a smaller buffer": (lambda: dqn(buffer_size=100), "buffer_size", "160", "100"),
    "another buffer": (
        lambda: dqn(n_steps=3), "buffer", "ReplayBuffer", "NStepReplayBuffer",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals") / "run"
    dqn().learn(60, callback=SnapshotCallback(folder, **QUICK))
    return folder


@pytest.fixture(scope="module")
def wide_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four environments with a thousand rows."""
    folder = tmp_path_factory.mktemp("refusals") / "wide"
    dqn(cartpole(4), buffer_size=1000).learn(60, callback=callback_of(folder))
    return folder


def callback_of(run_dir: Path) -> SnapshotCallback:
    return SnapshotCallback(run_dir, **QUICK)


@pytest.mark.parametrize("other", OTHERS)
def test_another_model_is_refused_by_both_names(run_dir: Path, other: str) -> None:
    make_other, what, saved, found = OTHERS[other]
    before = listing(run_dir)
    model = make_other()
    with pytest.raises(ModelMismatchError) as caught:
        model.learn(120, callback=SnapshotCallback(run_dir, **QUICK))
    assert listing(run_dir) == before
    assert caught.value.what == what
    assert saved in str(caught.value.saved)
    assert found in str(caught.value.found)
    assert saved in str(caught.value)
    assert found in str(caught.value)
    assert model.num_timesteps == 0


@pytest.mark.parametrize(("envs", "rows"), [(2, 1000), (8, 1000), (4, 500), (4, 2000)])
def test_another_shape_is_refused_with_both_sides_and_what_can_be_done(
    wide_run: Path, envs: int, rows: int
) -> None:
    before = listing(wide_run)
    with pytest.raises(ModelMismatchError, match="make the model as the run was made") as caught:
        dqn(cartpole(envs), buffer_size=rows).learn(80, callback=callback_of(wide_run))
    saved, found = (4, envs) if envs != 4 else (1000 // 4, rows // 4)
    assert (caught.value.saved, caught.value.found) == (saved, found)
    assert str(saved) in str(caught.value)
    assert str(found) in str(caught.value)
    assert listing(wide_run) == before


def test_an_algorithm_whose_moments_are_not_known_is_refused(tmp_path: Path) -> None:
    sb3_contrib = pytest.importorskip("sb3_contrib")
    model = sb3_contrib.ARS("LinearPolicy", cartpole(), seed=1)
    with pytest.raises(ModelStateError, match=r"ARS is no .* loop of your own"):
        model.learn(60, callback=callback_of(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_the_number_of_steps_in_a_rollout_belongs_to_the_run(tmp_path: Path) -> None:
    for n_steps in (16, 8):
        model = make(sb3.A2C, pendulum(), n_steps=n_steps)
        callback = SnapshotCallback(tmp_path / "run", **QUICK)
        if n_steps == 16:
            model.learn(64, callback=callback)
            continue
        with pytest.raises(ModelMismatchError, match="n_steps 16, the script's model 8"):
            model.learn(64, callback=callback)


def test_a_run_of_the_core_is_refused(tmp_path: Path) -> None:
    with SnapshotEngine(tmp_path / "run") as engine:
        engine.track(counters={"a": 1}).restore()
        engine.snapshot(1).wait(30)
    before = listing(tmp_path / "run")
    with pytest.raises(ModelMismatchError, match="not made by this callback"):
        dqn().learn(60, callback=SnapshotCallback(tmp_path / "run", **QUICK))
    assert listing(tmp_path / "run") == before


def test_fresh_begins_anew_with_another_model(run_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run_dir, tmp_path / "run")
    callback = SnapshotCallback(copy, fresh=True, **QUICK)
    dqn(buffer_size=100).learn(40, callback=callback)
    assert not callback.report


def test_a_model_that_has_trained_is_refused(tmp_path: Path) -> None:
    model = dqn()
    model.learn(60)
    for settings in ({}, {"reset_num_timesteps": False}):
        with pytest.raises(ModelStateError, match=r"trained already .* reset_num_timesteps"):
            model.learn(60, callback=SnapshotCallback(tmp_path / "run", **QUICK), **settings)
    assert not (tmp_path / "run").exists()


def test_a_second_learn_is_refused(tmp_path: Path) -> None:
    callback = SnapshotCallback(tmp_path / "run", **QUICK)
    model = dqn()
    model.learn(40, callback=callback)
    before = listing(tmp_path / "run")
    for settings in ({}, {"reset_num_timesteps": False}):
        with pytest.raises(ModelStateError, match="use its own"):
            model.learn(80, callback=callback, **settings)
    with pytest.raises(ModelStateError, match="with SnapshotCallback"):
        callback.learn(model, 80)
    assert listing(tmp_path / "run") == before


def test_no_two_callbacks_take_one_model(tmp_path: Path) -> None:
    model = dqn()
    callbacks = [SnapshotCallback(tmp_path / name, **QUICK) for name in ("one", "two")]
    with pytest.raises(ValueError, match="one callback is enough"):
        model.learn(40, callback=callbacks)


def test_environments_made_with_other_arguments_are_refused(tmp_path: Path) -> None:
    def train(**settings: Any) -> None:
        env = gymnasium.make("Pendulum-v1", **settings)
        model = sb3.SAC("MlpPolicy", env, seed=1, policy_kwargs={"net_arch": [8]})
        model.learn(30, callback=SnapshotCallback(tmp_path / "run", every_steps=10, verbose=0))

    train(g=10.0, max_episode_steps=50)
    for other in ({"g": 5.0, "max_episode_steps": 50}, {"g": 10.0, "max_episode_steps": 60}):
        with pytest.raises(ModelMismatchError, match="environments made with") as caught:
            train(**other)
        assert "g=10.0" in caught.value.saved[0]
    train(g=10.0, max_episode_steps=50)
