"""PPO in one file, which goes on after kill -9.

    python examples/ppo.py --total-steps 50000 --run runs/ppo

Kill it however you like and start the same command again: it continues from the newest snapshot, in
mid-episode, bit for bit as if nothing had happened. The numbered comments, (1) to (4), are all that
pyengine adds.

A snapshot is taken where an iteration ends. There the rollout has been learned from and the next
one begins empty, so that it need not be saved: on-policy learners have no replay buffer, and the
engine without a ring is enough. What is more easily forgotten are the statistics by which
observations and rewards are scaled.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms". Steps are counted over all
environments.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, fields

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributions import Categorical

import pyengine
from pyengine.integrations.gymnasium import EnvState


@dataclass
class Args:
    """Every setting is an option of the command line: --num-envs 8, --rollout-steps 64, ..."""

    run: str = "runs/ppo"  # started again with the same directory, it resumes
    env_id: str = "CartPole-v1"
    seed: int = 1
    threads: int = 1  # fixed, because it decides the order of floating-point sums
    total_steps: int = 200_000
    snapshot_every: int = 10_000
    num_envs: int = 4
    rollout_steps: int = 128  # of each environment, in one iteration
    epochs: int = 4
    minibatches: int = 4
    width: int = 64  # of the hidden layers
    learning_rate: float = 2.5e-4  # at first; it falls to 0 in a straight line
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    max_grad_norm: float = 0.5


class Agent(nn.Module):
    """A policy and a value function, apart."""

    def __init__(self, envs: gym.vector.VectorEnv, width: int) -> None:
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape or ()))
        self.policy = self._network(inputs, width, int(envs.single_action_space.n), gain=0.01)
        self.critic = self._network(inputs, width, 1, gain=1.0)

    @staticmethod
    def _network(inputs: int, width: int, outputs: int, gain: float) -> nn.Sequential:
        linear = nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, outputs)
        for layer, scale in zip(linear, (2**0.5, 2**0.5, gain), strict=True):
            nn.init.orthogonal_(layer.weight, scale)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(linear[0], nn.Tanh(), linear[1], nn.Tanh(), linear[2])

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)


@dataclass
class RunningMeanStd:
    """Mean and variance of everything seen so far, one for each number of an observation."""

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    count: float = 1e-4

    def update(self, batch: NDArray[np.float64]) -> None:
        """Count a batch in; its first axis counts samples (Chan et al. 1979)."""
        share = len(batch) / (self.count + len(batch))
        apart = batch.mean(0) - self.mean
        self.mean = self.mean + apart * share
        self.var = self.var * (1 - share) + batch.var(0) * share + apart**2 * share * (1 - share)
        self.count += len(batch)

    def scaled(self, values: NDArray[np.float64], *, is_centred: bool) -> NDArray[np.float32]:
        moved = values - self.mean if is_centred else values
        return np.clip(moved / np.sqrt(self.var + 1e-8), -10, 10).astype(np.float32)


@dataclass
class Rollout:
    """What one iteration learns from; each list has one tensor a step."""

    obs: list[torch.Tensor] = field(default_factory=list)
    actions: list[torch.Tensor] = field(default_factory=list)
    log_probs: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    rewards: list[torch.Tensor] = field(default_factory=list)
    ends: list[torch.Tensor] = field(default_factory=list)

    def advantages(self, last_value: torch.Tensor, gamma: float, decay: float) -> torch.Tensor:
        """Return generalised advantages, (T, envs); Schulman et al. 2015."""
        found, advantage, next_value = [], torch.zeros_like(last_value), last_value
        steps = zip(self.rewards, self.values, self.ends, strict=True)
        for reward, value, end in reversed(list(steps)):
            error = reward + gamma * next_value * ~end - value
            advantage = error + gamma * decay * advantage * ~end
            next_value = value
            found.append(advantage)
        return torch.stack(found[::-1])


def make_env(args: Args) -> Callable[[], gym.Env]:
    """Return what makes one environment."""
    return lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))


def learn(
    args: Args, agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout,
    advantages: torch.Tensor,
) -> None:  # fmt: skip
    """Make the gradient steps of one iteration."""
    obs, actions, old_log_probs, values = (
        torch.cat(one) for one in (rollout.obs, rollout.actions, rollout.log_probs, rollout.values)
    )
    advantages = advantages.flatten()
    returns = advantages + values
    for _ in range(args.epochs):
        for rows in torch.randperm(len(obs)).chunk(args.minibatches):
            policy = Categorical(logits=agent.policy(obs[rows]))
            ratio = (policy.log_prob(actions[rows]) - old_log_probs[rows]).exp()
            gain = advantages[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            bounded = ratio.clamp(1 - args.clip, 1 + args.clip)
            policy_loss = -torch.min(ratio * gain, bounded * gain).mean()
            value_loss = (agent.value(obs[rows]) - returns[rows]).square().mean() / 2
            loss = policy_loss + args.value_weight * value_loss
            loss = loss - args.entropy_weight * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def train(args: Args) -> None:
    """Train until `total_steps`, from wherever the run stands."""
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    # An episode begins in the step in which the last one ends: every step is a transition.
    envs = gym.vector.SyncVectorEnv(
        [make_env(args)] * args.num_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )
    agent = Agent(envs, args.width)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    shape = envs.single_observation_space.shape or ()
    obs_scale = RunningMeanStd(np.zeros(shape), np.ones(shape))
    return_scale = RunningMeanStd(np.zeros(()), np.ones(()))
    returns = np.zeros(args.num_envs)  # discounted, of the open episodes
    obs, _ = envs.reset(seed=args.seed)
    counters = {"episodes": 0}

    engine = pyengine.SnapshotEngine(args.run, every_steps=args.snapshot_every)
    engine.track(  # (1) everything that the next iteration depends on, changed in place from here
        agent=agent, optimizer=optimizer, obs_scale=obs_scale, return_scale=return_scale,
        returns=returns, counters=counters, envs=EnvState(envs).tracked(), obs=obs,
    )  # fmt: skip
    engine.declare_level("exact")  # that was all: a resumed run is the same, bit for bit
    report = engine.restore()  # (2) falsy, with next_step 0, on a fresh run

    with engine, engine.stopping_on_signals():  # SIGTERM and Ctrl-C end it in a snapshot
        batch = args.num_envs * args.rollout_steps
        for begin in range(report.next_step, args.total_steps, batch):
            optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - begin / args.total_steps)
            rollout = Rollout()
            for _ in range(args.rollout_steps):
                obs_scale.update(obs.astype(np.float64))
                seen = torch.as_tensor(obs_scale.scaled(obs, is_centred=True))
                with torch.no_grad():
                    policy, value = Categorical(logits=agent.policy(seen)), agent.value(seen)
                    action = policy.sample()
                next_obs, reward, terminated, truncated, infos = envs.step(action.numpy())
                end = terminated | truncated
                returns[:] = returns * args.gamma + reward
                return_scale.update(returns)
                gained = torch.as_tensor(return_scale.scaled(reward, is_centred=False))
                returns[end] = 0.0
                for i in np.flatnonzero(truncated & ~terminated):
                    # A time limit ends an episode, not what would have followed.
                    last = obs_scale.scaled(infos["final_obs"][i], is_centred=True)
                    with torch.no_grad():
                        gained[i] += args.gamma * agent.value(torch.as_tensor(last))
                if end.any():
                    counters["episodes"] += int(end.sum())
                    won = infos["final_info"]["episode"]["r"][end].tolist()
                    print(f"step {begin}, episode {counters['episodes']}: returns {won}")
                rollout.obs.append(seen)
                rollout.actions.append(action)
                rollout.log_probs.append(policy.log_prob(action))
                rollout.values.append(value)
                rollout.rewards.append(gained)
                rollout.ends.append(torch.as_tensor(end))
                obs[:] = next_obs

            with torch.no_grad():
                last_value = agent.value(torch.as_tensor(obs_scale.scaled(obs, is_centred=True)))
            advantages = rollout.advantages(last_value, args.gamma, args.gae_lambda)
            learn(args, agent, optimizer, rollout, advantages)
            # (3) the last statement: the state with which the next iteration begins
            engine.tick(begin + batch - 1)
        if report.next_step < args.total_steps:
            engine.close(final=begin + batch - 1)  # (4) waits until it is durable
    envs.close()


def parse_arguments() -> Args:
    """Read the command line; every setting has a default."""
    parser = argparse.ArgumentParser(description="PPO that survives kill -9")
    for setting in fields(Args):
        name = "--" + setting.name.replace("_", "-")
        parser.add_argument(name, type=type(setting.default), default=setting.default)
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    train(parse_arguments())
