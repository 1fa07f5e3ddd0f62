"""Tiny models of Stable-Baselines3, one of each algorithm, with environments that end soon.

What decides a run is drawn from saved generators only, so that equal digests mean equal futures.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3 as sb3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecMonitor, VecNormalize

try:
    import sb3_contrib
except ImportError:
    sb3_contrib = None

OFF_POLICY = {
    "learning_starts": 40, "buffer_size": 160, "batch_size": 16, "policy_kwargs": {"net_arch": [16]}
}  # fmt: skip
ON_POLICY = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "policy_kwargs": {"net_arch": [16]}}


def decay(progress: float) -> float:
    """Return a learning rate that shows when progress is wrong."""
    return 1e-3 * (0.1 + progress)


class Success(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says at the end of an episode whether it was a long one."""

    def step(self, action: Any) -> Any:
        self.length += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        info = {**info, "is_success": self.length > 20} if terminated else info
        return observation, reward, terminated, truncated, info

    def reset(self, **arguments: Any) -> Any:
        self.length = 0
        return self.env.reset(**arguments)


def cartpole(count: int = 1) -> VecEnv:
    return make_vec_env("CartPole-v1", count, seed=5, wrapper_class=Success)


def pendulum(count: int = 1) -> VecEnv:
    """Return pendulums whose episodes are short enough to end in a test."""
    return make_vec_env("Pendulum-v1", count, seed=5, env_kwargs={"max_episode_steps": 30})


def normalized() -> VecEnv:
    return VecNormalize(VecFrameStack(VecMonitor(pendulum(2)), 2))


def _dqn() -> BaseAlgorithm:
    return make(
        sb3.DQN, cartpole(), **OFF_POLICY, train_freq=4, gradient_steps=2,
        target_update_interval=24, exploration_fraction=0.8,
    )  # fmt: skip


def _sac() -> BaseAlgorithm:
    return make(sb3.SAC, pendulum(2), **OFF_POLICY, train_freq=3, use_sde=True, sde_sample_freq=2)


def _td3() -> BaseAlgorithm:
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), np.ones(1) * 0.3)
    return make(sb3.TD3, normalized(), **OFF_POLICY, action_noise=noise)


def _ddpg() -> BaseAlgorithm:
    return make(sb3.DDPG, pendulum(), **OFF_POLICY, n_steps=3)


def _ppo() -> BaseAlgorithm:
    return make(sb3.PPO, VecNormalize(cartpole(2)), **ON_POLICY, clip_range=decay)


def _a2c() -> BaseAlgorithm:
    return make(sb3.A2C, pendulum(2), use_sde=True, policy_kwargs={"net_arch": [16]})


def _overlapping() -> BaseAlgorithm:
    """Rows share observations, and each lap of the buffer ends with a truncation."""
    shared = {
        "optimize_memory_usage": True,
        "replay_buffer_kwargs": {"handle_timeout_termination": False},
    }
    settings = {**OFF_POLICY, "buffer_size": 60}
    return make(sb3.SAC, pendulum(2), **settings, **shared)


def _her() -> BaseAlgorithm:
    venv = make_vec_env(lambda: BitFlippingEnv(n_bits=4, max_steps=6), 2, seed=5)
    kind = {
        "replay_buffer_class": sb3.HerReplayBuffer,
        "replay_buffer_kwargs": {"copy_info_dict": True},
        "policy": "MultiInputPolicy",
    }
    return make(sb3.DQN, venv, **OFF_POLICY, **kind, target_update_interval=24)


def _qrdqn() -> BaseAlgorithm:
    settings = {**OFF_POLICY, "policy_kwargs": {"net_arch": [16], "n_quantiles": 5}}
    return make(sb3_contrib.QRDQN, cartpole(), **settings, target_update_interval=24)


def _tqc() -> BaseAlgorithm:
    settings = {**OFF_POLICY, "policy_kwargs": {"net_arch": [16], "n_quantiles": 5}}
    return make(sb3_contrib.TQC, pendulum(), **settings, ent_coef="auto_0.1")


def _crossq() -> BaseAlgorithm:
    return make(sb3_contrib.CrossQ, pendulum(), **OFF_POLICY)


def _recurrent() -> BaseAlgorithm:
    kind = sb3_contrib.RecurrentPPO
    settings = {**ON_POLICY, "policy_kwargs": {"net_arch": [16], "lstm_hidden_size": 8}}
    return make(kind, cartpole(2), policy="MlpLstmPolicy", **settings)


def _trpo() -> BaseAlgorithm:
    settings = {"n_steps": 16, "batch_size": 16, "policy_kwargs": {"net_arch": [16]}}
    return make(sb3_contrib.TRPO, pendulum(2), **settings)


class Masked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Allows one of two actions only, every third step."""

    def action_masks(self) -> Any:
        return np.array([self.env.get_wrapper_attr("length") % 3 > 0, True])


def _maskable() -> BaseAlgorithm:
    venv = make_vec_env("CartPole-v1", 2, seed=5, wrapper_class=lambda env: Masked(Success(env)))
    return make(sb3_contrib.MaskablePPO, venv, **ON_POLICY)


def make(
    kind: type[BaseAlgorithm], venv: VecEnv, *, policy: str = "MlpPolicy", **settings: Any
) -> BaseAlgorithm:
    """Return a model on the CPU, its learning rate decaying."""
    settings = {"learning_rate": decay, "seed": 3, "device": "cpu", **settings}
    return kind(policy, venv, **copy.deepcopy(settings))  # the library writes into policy_kwargs


def _fixed_entropy() -> BaseAlgorithm:
    return make(sb3.SAC, pendulum(2), **OFF_POLICY, ent_coef=0.2)


MODELS: dict[str, Callable[[], BaseAlgorithm]] = {
    "DQN": _dqn, "SAC": _sac, "TD3": _td3, "DDPG": _ddpg, "PPO": _ppo, "A2C": _a2c,
    "HER": _her, "SAC with overlapping rows": _overlapping,
    "SAC with fixed entropy": _fixed_entropy,
}  # fmt: skip
if sb3_contrib is not None:
    MODELS |= {"QRDQN": _qrdqn, "TQC": _tqc, "CrossQ": _crossq, "RecurrentPPO": _recurrent}
    MODELS |= {"TRPO": _trpo, "MaskablePPO": _maskable}
