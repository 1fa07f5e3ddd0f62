"""VecEnv stacks: obstacles, statistics, resets, workers."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecFrameStack,
    VecNormalize,
)

import pyengine
from pyengine.errors import StateMismatchError
from pyengine.integrations.gymnasium import StatefulEnv
from pyengine.integrations.sb3.environments import (
    VecEnvState,
    normalizer_state,
    reset_after_restore,
    set_normalizer_state,
)


class Connected(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Talks to somebody elsewhere."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.line = socket.socket()


def normalized(**options: Any) -> VecNormalize:
    return VecNormalize(make_vec_env("CartPole-v1", 2, seed=0), **options)


def step(venv: VecEnv, count: int) -> list[Any]:
    shown = []
    for _ in range(count):
        shown.append(venv.step(np.zeros(venv.num_envs, dtype=np.int64)))
    return shown


def test_a_connection_is_an_obstacle_that_says_where() -> None:
    state = VecEnvState(make_vec_env("CartPole-v1", 2, wrapper_class=Connected))
    assert state.obstacles[0] == "DummyVecEnv.envs[0].line: a socket.socket cannot be saved"


def test_a_file_of_results_is_no_obstacle_and_stays_open(tmp_path: Path) -> None:
    venv = make_vec_env("CartPole-v1", 1, seed=0, monitor_dir=str(tmp_path))
    venv.reset()
    state = VecEnvState(venv)
    assert state.obstacles == ()
    state.set_state(state.get_state())
    step(venv, 30)
    venv.close()
    lines = (tmp_path / "0.monitor.csv").read_text().splitlines()
    assert len(lines) > 3


def test_a_start_time_stays_that_of_the_process() -> None:
    saved, live = make_vec_env("CartPole-v1", 1), make_vec_env("CartPole-v1", 1)
    began = live.envs[0].t_start = live.envs[0].t_start - 100
    VecEnvState(live).set_state(VecEnvState(saved).get_state())
    assert live.envs[0].t_start == began


def test_another_number_of_environments_is_refused() -> None:
    state = VecEnvState(make_vec_env("CartPole-v1", 3)).get_state()
    with pytest.raises(StateMismatchError, match=r"envs\[2\]"):
        VecEnvState(make_vec_env("CartPole-v1", 2)).set_state(state)


def test_another_wrapper_is_refused() -> None:
    state = VecEnvState(normalized()).get_state()
    with pytest.raises(StateMismatchError, match=r"VecFrameStack|nothing"):
        VecEnvState(VecFrameStack(make_vec_env("CartPole-v1", 2), 2)).check_state(state)


def test_statistics_survive_a_reset_without_another_count() -> None:
    saved, live = normalized(), normalized()
    saved.reset()
    step(saved, 40)
    set_normalizer_state(live, normalizer_state(saved))
    observation = reset_after_restore(live, 5)
    assert live.training
    assert normalizer_state(live)[0]["return"]["count"] == saved.ret_rms.count
    np.testing.assert_array_equal(live.obs_rms.mean, saved.obs_rms.mean)
    np.testing.assert_array_equal(observation, live.normalize_obs(live.get_original_obs()))
    again = reset_after_restore(live, 5)
    np.testing.assert_array_equal(observation, again)


def test_statistics_of_other_observations_are_refused() -> None:
    with pytest.raises(StateMismatchError, match="observation"):
        set_normalizer_state(normalized(), normalizer_state(normalized(norm_obs=False)))


def test_workers_without_stateful_env_are_an_obstacle_and_go_on() -> None:
    venv = make_vec_env("CartPole-v1", 2, seed=0, vec_env_cls=SubprocVecEnv)
    try:
        venv.reset()
        (obstacle,) = VecEnvState(venv).obstacles
        assert "wrapper_class=StatefulEnv" in obstacle
        assert len(step(venv, 3)) == 3
    finally:
        venv.close()


def test_an_obstacle_in_a_worker_is_told_and_the_worker_goes_on() -> None:
    venv = SubprocVecEnv([lambda: StatefulEnv(Connected(gymnasium.make("CartPole-v1")))])
    try:
        venv.reset()
        (obstacle,) = VecEnvState(venv).obstacles
        assert "[0]" in obstacle
        assert "socket" in obstacle
        assert len(step(venv, 3)) == 3
    finally:
        venv.close()


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_may_start_while_an_engine_is_open(tmp_path: Path, method: str) -> None:
    counters = {"n": 0}
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(counters=counters)
        engine.restore()
        engine.snapshot(0).wait(30)
        makers = [lambda: StatefulEnv(gymnasium.make("CartPole-v1"))] * 2
        venv = SubprocVecEnv(makers, start_method=method)
        venv.reset()
        step(venv, 5)
        counters["n"] = 1
        engine.snapshot(1).wait(30)
        venv.close()
        engine.snapshot(2).wait(30)


def test_a_state_does_not_change_while_another_thread_steps() -> None:
    venv = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
    venv.reset()
    state = VecEnvState(venv).get_state()
    thread = threading.Thread(target=step, args=(venv, 5))
    thread.start()
    thread.join()
    VecEnvState(venv).set_state(state)
    assert VecEnvState(venv).get_state()["nodes"][0]["held"]["buf_dones"].tolist() == [False]
