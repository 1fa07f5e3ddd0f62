"""Tiny trainings of Tianshou, one of each kind of buffer, with environments that end soon.

What decides a run is drawn from saved generators only, so that equal digests mean equal futures.
The window crosses ends of episodes, updates of targets, and the end of the ring.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tianshou.algorithm import DDPG, DQN, PPO, SAC
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory, LRSchedulerFactoryLinear
from tianshou.data import (
    Collector,
    HERVectorReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)
from tianshou.env import DummyVectorEnv, SubprocVectorEnv, VectorEnvNormObs
from tianshou.exploration import OUNoise
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils import LazyLogger
from tianshou.utils.net.common import Net, get_dict_state_decorator
from tianshou.utils.net.continuous import (
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
)
from torch import nn

from pyengine.integrations.tianshou import StatefulEnv

EPOCHS = 3
EPOCH_STEPS = 40
HORIZON = 12

Built = tuple[Any, Any]


class Reach(gymnasium.Env[Any, Any]):
    """A point that is to reach a goal within HORIZON steps, drawn anew for each episode."""

    def __init__(self) -> None:
        box = spaces.Box(-2, 2, (2,), np.float64)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, box))
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.at = self.goal = np.zeros(2)
        self.steps = 0

    def reset(self, **arguments: Any) -> Any:
        super().reset(**arguments)
        self.at, self.goal, self.steps = np.zeros(2), self.np_random.uniform(-1, 1, 2), 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.at = np.clip(self.at + 0.3 * np.asarray(action, float), -2, 2)
        self.steps += 1
        reward = float(closeness(self.at[None], self.goal[None])[0])
        return self._seen(), reward, False, self.steps >= HORIZON, {"distance": -reward}

    def _seen(self) -> dict[str, Any]:
        return {
            "observation": self.at.copy(),
            "achieved_goal": self.at.copy(),
            "desired_goal": self.goal.copy(),
        }


def closeness(achieved: Any, desired: Any) -> Any:
    return -np.linalg.norm(achieved - desired, axis=-1)


class Ledger(LazyLogger):
    """Keeps what was logged, by kind and step, without times."""

    def __init__(self) -> None:
        super().__init__()
        self.training_interval, self.update_interval = 9, 4
        self.entries: dict[str, dict[int, Any]] = {}

    def write(self, step_type: str, step: int, data: Any) -> None:
        self.entries.setdefault(step_type, {})[step] = _timeless(data)


def _timeless(data: Any) -> Any:
    if isinstance(data, dict):
        return {
            key: _timeless(value)
            for key, value in data.items()
            if not any(word in str(key) for word in ("time", "speed", "timing"))
        }
    return data


class Told(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says in `info`, at the end of an episode only, how long it was."""

    def reset(self, **arguments: Any) -> Any:
        self.length = 0
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        self.length += 1
        seen, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            info = {**info, "length": float(self.length)}
        return seen, reward, terminated, truncated, info


def cartpole() -> Any:
    return Told(gymnasium.make("CartPole-v1", max_episode_steps=25))


def pendulum() -> Any:
    return gymnasium.make("Pendulum-v1", max_episode_steps=14)


def venv(make: Callable[[], Any], count: int, seed: int, kind: Any = DummyVectorEnv) -> Any:
    found = kind([make] * count)
    found.seed(seed)
    return found


def adam(lr: float = 1e-3) -> AdamOptimizerFactory:
    return AdamOptimizerFactory(lr=lr)


def decaying() -> AdamOptimizerFactory:
    schedule = LRSchedulerFactoryLinear(EPOCHS, EPOCH_STEPS, 4)
    return adam().with_lr_scheduler_factory(schedule)


def dqn(buffer: Any, count: int, **options: Any) -> Built:
    """Build a DQN with n-step returns, a decaying learning rate and a decaying epsilon."""
    env = cartpole()
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=4, action_shape=2, hidden_sizes=[16]),
        action_space=env.action_space,
        observation_space=env.observation_space,
        eps_training=0.5,
        eps_inference=0.05,
    )
    algorithm: Any = DQN(
        policy=policy, optim=decaying(), gamma=0.97, n_step_return_horizon=3, target_update_freq=7
    )
    training = Collector(algorithm, venv(cartpole, count, 5), buffer, exploration_noise=True)
    training.reset()
    training.collect(n_step=8, random=True)

    def explore_less(epoch: int, env_step: int) -> None:
        policy.set_eps_training(0.5 / epoch + 1e-3 * env_step)
        if hasattr(buffer, "set_beta"):
            buffer.set_beta(0.4 + 0.1 * epoch)

    return algorithm, params(OffPolicyTrainerParams, training, cartpole, explore_less, **options)


def params(kind: Any, training: Any, make: Any, training_fn: Any = None, **options: Any) -> Any:
    test = Collector(training.policy, venv(make, 1, 17))
    found = {
        "max_epochs": EPOCHS,
        "epoch_num_steps": EPOCH_STEPS,
        "collection_step_num_env_steps": 4,
        "batch_size": 8,
        "test_step_num_episodes": 1,
        "verbose": False,
        "show_progress": False,
        "logger": Ledger(),
    }
    if kind is OffPolicyTrainerParams:
        found["update_step_num_gradient_steps_per_sample"] = 0.5
    return kind(
        training_collector=training,
        test_collector=test,
        training_fn=training_fn,
        **{**found, **options},
    )


def _prioritized() -> Built:
    buffer = PrioritizedVectorReplayBuffer(90, 2, alpha=0.6, beta=0.4)
    return dqn(buffer, 2)


def _stacked() -> Built:
    """Build one whose rows hold no next observation, in a buffer of one environment."""
    return dqn(ReplayBuffer(50, ignore_obs_next=True), 1)


def _subproc() -> Built:
    """Build one whose environments are in processes of their own."""
    algorithm, found = dqn(VectorReplayBuffer(60, 2), 2)
    buffer = VectorReplayBuffer(60, 2)
    env = venv(lambda: StatefulEnv(cartpole()), 2, 5, SubprocVectorEnv)
    found.training_collector = Collector(algorithm, env, buffer, exploration_noise=True)
    return algorithm, found


def _sac() -> Built:
    env = pendulum()
    net = Net(state_shape=3, hidden_sizes=[16])
    actor = ContinuousActorProbabilistic(preprocess_net=net, action_shape=1, unbounded=True)
    policy = SACPolicy(
        actor=actor, action_space=env.action_space, observation_space=env.observation_space
    )
    algorithm: Any = SAC(
        policy=policy, policy_optim=adam(), critic=critic(4), critic_optim=adam(),
        critic2=critic(4), critic2_optim=adam(), alpha=AutoAlpha(-1.0, 0.0, adam(1e-2)),
    )  # fmt: skip
    normalized = VectorEnvNormObs(venv(pendulum, 2, 5))
    training = Collector(algorithm, normalized, VectorReplayBuffer(70, 2))
    return algorithm, params(OffPolicyTrainerParams, training, pendulum)


def critic(inputs: int) -> ContinuousCritic:
    net = Net(state_shape=inputs, hidden_sizes=[16])
    return ContinuousCritic(preprocess_net=net)


def _her() -> Built:
    env = Reach()
    flat, size = get_dict_state_decorator(
        {"observation": 2, "achieved_goal": 2, "desired_goal": 2},
        ["observation", "achieved_goal", "desired_goal"],
    )
    shape = int(np.prod(size))
    actor = flat(ContinuousActorDeterministic)(
        preprocess_net=Net(state_shape=shape, hidden_sizes=[16]), action_shape=2
    )
    valued = flat(ContinuousCritic)(preprocess_net=Net(state_shape=shape + 2, hidden_sizes=[16]))
    policy = ContinuousDeterministicPolicy(
        actor=actor, action_space=env.action_space, observation_space=env.observation_space,
        exploration_noise=OUNoise(sigma=0.4),
    )  # fmt: skip
    algorithm: Any = DDPG(
        policy=policy, policy_optim=adam(), critic=valued, critic_optim=adam(),
        n_step_return_horizon=2,
    )  # fmt: skip
    buffer = HERVectorReplayBuffer(
        72, 2, compute_reward_fn=closeness, horizon=HORIZON, future_k=4.0
    )
    training = Collector(algorithm, venv(Reach, 2, 5), buffer, exploration_noise=True)
    training.reset()
    training.collect(n_step=2 * HORIZON, random=True)
    return algorithm, params(OffPolicyTrainerParams, training, Reach)


def _ppo() -> Built:
    env = pendulum()
    net = Net(state_shape=3, hidden_sizes=[16])
    actor = ContinuousActorProbabilistic(preprocess_net=net, action_shape=1, unbounded=True)
    policy = ProbabilisticActorPolicy(
        actor=actor, dist_fn=normal, action_space=env.action_space,
        observation_space=env.observation_space,
    )  # fmt: skip
    algorithm: Any = PPO(policy=policy, critic=critic(3), optim=decaying(), return_scaling=True)
    training = Collector(
        algorithm, VectorEnvNormObs(venv(pendulum, 2, 5)), VectorReplayBuffer(40, 2)
    )
    return algorithm, params(
        OnPolicyTrainerParams, training, pendulum, update_step_num_repetitions=2,
        collection_step_num_env_steps=10,
    )  # fmt: skip


def normal(parts: Any) -> Any:
    loc, scale = parts
    return torch.distributions.Independent(torch.distributions.Normal(loc, scale), 1)


MODELS: dict[str, Callable[[], Built]] = {
    "prioritized DQN": _prioritized,
    "DQN without obs_next": _stacked,
    "SAC": _sac,
    "DDPG with HER": _her,
    "PPO": _ppo,
}
MORE_MODELS = {"DQN in processes": _subproc}


def build(name: str) -> Built:
    """Build one from the same seeds each time."""
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    torch.set_num_threads(1)
    return {**MODELS, **MORE_MODELS}[name]()


def modules_of(algorithm: nn.Module) -> dict[str, Any]:
    """Return every tensor of the algorithm's networks."""
    return {
        **dict(algorithm.named_parameters()),
        **{f"buffer {name}": one for name, one in algorithm.named_buffers()},
    }
