"""Statistics of normalisers in workers and in the main process, in a plain loop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import hashes
import numpy as np
import pytest
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation
from gymnasium.wrappers.vector import NormalizeReward
from processes import await_writers_end

import pyengine
from pyengine.errors import CaptureError, StateMismatchError
from pyengine.integrations.gymnasium import EnvState, StatefulEnv

RAW = np.array([0.6, -0.8, 2.5], np.float32)


def normalized() -> gymnasium.Env[Any, Any]:
    return NormalizeObservation(gymnasium.make("Pendulum-v1", max_episode_steps=12))


def registered() -> gymnasium.Env[Any, Any]:
    return StatefulEnv(normalized())


def workers(*makers: Callable[[], Any], mode: AutoresetMode = AutoresetMode.SAME_STEP) -> Any:
    """Return environments in workers, with rewards normalised in this process."""
    return NormalizeReward(AsyncVectorEnv(makers, autoreset_mode=mode))


def play(envs: Any, steps: int) -> list[Any]:
    """Step by drawn actions; return what was seen and done."""
    seen = []
    for _ in range(steps):
        action = envs.action_space.sample()
        seen.append([action, *envs.step(action)[:4]])
    return seen


def statistics(envs: Any) -> dict[str, Any]:
    """Return all statistics, and what becomes of one raw observation in each worker."""
    inner = envs.unwrapped
    found = [*inner.get_attr("obs_rms"), envs.return_rms]
    inner.set_attr("update_running_mean", False)
    shown = list(inner.call("observation", RAW))
    inner.set_attr("update_running_mean", True)
    return {"numbers": [vars(one) for one in found], "shown": shown}


def train(send: Callable[[Any], None], run_dir: str, kills: bool) -> None:
    """Play on from where the run stands; say what the statistics are, and what comes then."""
    envs = workers(registered, registered)
    envs.reset(seed=3)
    envs.action_space.seed(3)
    with pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(envs=EnvState(envs).tracked())
        if not engine.restore():
            play(envs, 30)
            engine.snapshot(30).wait(60)
        send(("statistics", hashes.hashed(statistics(envs))))
        send(("next", hashes.hashed(play(envs, 30))))
        if kills:
            for process in envs.unwrapped.processes:
                process.kill()
            os.kill(os.getpid(), signal.SIGKILL)
    envs.close()


def test_statistics_of_all_processes_come_back_bit_for_bit(
    start: Any, token: str, tmp_path: Path
) -> None:
    first = start(train, str(tmp_path), True)
    expected = first.messages()
    assert first.join() == -signal.SIGKILL
    await_writers_end(token)
    second = start(train, str(tmp_path), False)
    assert second.messages() == expected
    assert second.join() == 0


@pytest.mark.parametrize("makers", [(registered, normalized), (PendulumEnv, PendulumEnv)])
def test_a_wrapper_that_is_not_registered_is_named_and_the_workers_go_on(
    tmp_path: Path, makers: tuple[Callable[[], Any], ...]
) -> None:
    envs = workers(*makers)
    try:
        envs.reset(seed=3)
        with pyengine.SnapshotEngine(tmp_path) as engine:
            engine.track(envs=EnvState(envs).tracked())
            engine.restore()
            with pytest.raises(CaptureError, match="StatefulEnv, outermost"):
                engine.snapshot(0)
        play(envs, 3)
    finally:
        envs.close()


def test_workers_that_hide_a_coming_reset_are_an_obstacle() -> None:
    envs = AsyncVectorEnv([registered])  # NEXT_STEP
    try:
        envs.reset(seed=3)
        (obstacle,) = EnvState(envs).obstacles
        assert "SAME_STEP" in obstacle
        play(envs, 3)
    finally:
        envs.close()


def test_another_number_of_workers_or_another_environment_is_refused() -> None:
    def cartpole() -> gymnasium.Env[Any, Any]:
        return StatefulEnv(gymnasium.make("CartPole-v1"))

    made = [workers(registered, registered), workers(registered), workers(cartpole, cartpole)]
    try:
        for envs in made:
            envs.reset(seed=3)
        state = EnvState(made[0]).get_state()
        words = ("2 environments, here are 1", "another object")
        for envs, word in zip(made[1:], words, strict=True):
            before = hashes.hashed(envs.unwrapped.get_attr("state"))
            with pytest.raises(StateMismatchError, match=word):
                EnvState(envs).set_state(state)
            assert hashes.hashed(envs.unwrapped.get_attr("state")) == before
    finally:
        for envs in made:
            envs.close()


def test_wrappers_around_a_vector_environment_are_seen_to() -> None:
    def make() -> Any:
        inner = SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1", max_episode_steps=12)] * 2)
        counted = gymnasium.wrappers.vector.RecordEpisodeStatistics(inner)
        return NormalizeReward(gymnasium.wrappers.vector.NormalizeObservation(counted))

    first, second = make(), make()
    first.reset(seed=3)
    first.action_space.seed(3)
    play(first, 30)
    state = EnvState(first).get_state()
    expected = play(first, 30)
    EnvState(second).set_state(state)
    assert hashes.hashed(play(second, 30)) == hashes.hashed(expected)
