"""SAC with an automatic temperature, in one file, which goes on after kill -9.

    python examples/sac.py --total-steps 20000 --run runs/sac

Kill it however you like and start the same command again: it continues from the newest snapshot, in
mid-episode, bit for bit as if nothing had happened. The numbered comments, (1) to (5), are all that
pyengine adds.

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications". A step is one of all
environments together.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional

import pyengine
from pyengine.integrations.gymnasium import EnvState

LOG_STD_RANGE = (-5.0, 2.0)


@dataclass
class Args:
    """Every setting is an option of the command line: --env-id Hopper-v5, --batch-size 64, ..."""

    run: str = "runs/sac"  # started again with the same directory, it resumes
    env_id: str = "Pendulum-v1"
    seed: int = 1
    threads: int = 1  # fixed, because it decides the order of floating-point sums
    total_steps: int = 100_000
    snapshot_every: int = 5_000
    num_envs: int = 1
    capacity: int = 1_000_000  # transitions of all environments
    learning_starts: int = 5_000
    batch_size: int = 256
    width: int = 256  # of the hidden layers
    gamma: float = 0.99
    tau: float = 0.005
    actor_lr: float = 3e-4
    critic_lr: float = 1e-3
    actor_every: int = 2  # updates of the critics; as many updates of the actor follow at once
    target_every: int = 1


class Actor(nn.Module):
    """A Gaussian whose draws go through tanh into the range of the actions."""

    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, envs: gym.vector.VectorEnv, width: int) -> None:
        super().__init__()
        space: Any = envs.single_action_space
        self.body = nn.Sequential(
            nn.Linear(int(np.prod(envs.single_observation_space.shape or ())), width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
        )  # fmt: skip
        self.mean = nn.Linear(width, space.shape[0])
        self.log_std = nn.Linear(width, space.shape[0])
        self.register_buffer("low", torch.as_tensor(space.low))
        self.register_buffer("high", torch.as_tensor(space.high))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return actions, (B, actions), and the logarithms of their densities, (B,)."""
        hidden = self.body(obs)
        log_std = self.log_std(hidden).clamp(*LOG_STD_RANGE)
        normal = torch.distributions.Normal(self.mean(hidden), log_std.exp())
        raw = normal.rsample()
        half = (self.high - self.low) / 2
        # log(1 - tanh(x)^2), in a form that stays finite for large x.
        log_slope = 2 * (np.log(2) - raw - functional.softplus(-2 * raw))
        log_density = normal.log_prob(raw) - log_slope - half.log()
        return self.low + half * (torch.tanh(raw) + 1), log_density.sum(1)


class Critics(nn.Module):
    """Two action values of the same pair, learned apart."""

    def __init__(self, envs: gym.vector.VectorEnv, width: int) -> None:
        super().__init__()
        spaces = (envs.single_observation_space, envs.single_action_space)
        inputs = sum(int(np.prod(space.shape or ())) for space in spaces)
        self.both = nn.ModuleList(
            nn.Sequential(
                nn.Linear(inputs, width), nn.ReLU(),
                nn.Linear(width, width), nn.ReLU(),
                nn.Linear(width, 1),
            )
            for _ in range(2)
        )  # fmt: skip

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Return the values, (2, B)."""
        pair = torch.cat([obs, action], 1)
        return torch.stack([critic(pair).squeeze(1) for critic in self.both])


def make_env(args: Args) -> Callable[[], gym.Env]:
    """Return what makes one environment."""
    return lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))


def step_optimizer(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(args: Args) -> None:
    """Train until `total_steps`, from wherever the run stands."""
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    envs = gym.vector.SyncVectorEnv([make_env(args)] * args.num_envs)
    envs.action_space.seed(args.seed)
    actor = Actor(envs, args.width)
    critics, targets = Critics(envs, args.width), Critics(envs, args.width)
    targets.load_state_dict(critics.state_dict())
    log_alpha = torch.zeros((), requires_grad=True)
    wanted_entropy = -float(np.prod(envs.single_action_space.shape or ()))
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=args.actor_lr)
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=args.critic_lr)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=args.critic_lr)

    obs, _ = envs.reset(seed=args.seed)
    done = np.zeros(args.num_envs, bool)
    counters = {"updates": 0, "episodes": 0}
    # (1) Rows lie in shared memory, once; they are not copied for a snapshot.
    schema = pyengine.Schema.from_env(envs)
    ring = pyengine.ReplayBuffer(schema, args.capacity, num_envs=args.num_envs, seed=args.seed)

    engine = pyengine.SnapshotEngine(args.run, every_steps=args.snapshot_every)
    engine.track(  # (2) everything that the next step depends on, changed in place from here on
        actor=actor, critics=critics, targets=targets, log_alpha=log_alpha,
        actor_optimizer=actor_optimizer, critic_optimizer=critic_optimizer,
        alpha_optimizer=alpha_optimizer, replay=ring, counters=counters,
        envs=EnvState(envs).tracked(), obs=obs, done=done,
    )  # fmt: skip
    engine.declare_level("exact")  # that was all: a resumed run is the same, bit for bit
    report = engine.restore()  # (3) falsy, with next_step 0, on a fresh run

    with engine, engine.stopping_on_signals():  # SIGTERM and Ctrl-C end it in a snapshot
        for step in range(report.next_step, args.total_steps):
            if step < args.learning_starts:
                action = envs.action_space.sample()
            else:
                with torch.no_grad():
                    action = actor(torch.as_tensor(obs))[0].numpy()
            next_obs, reward, terminated, truncated, infos = envs.step(action)
            # The step after an episode's end is a reset, and no transition.
            ring.add(
                obs=obs, action=action, reward=reward, next_obs=next_obs,
                terminated=terminated, truncated=truncated, mask=~done,
            )  # fmt: skip
            obs[:], done[:] = next_obs, terminated | truncated
            if done.any():
                counters["episodes"] += int(done.sum())
                gained = infos["episode"]["r"][done].round(1).tolist()
                print(f"step {step}, episode {counters['episodes']}: returns {gained}")

            if step >= args.learning_starts:
                batch = ring.sample(args.batch_size, device="cpu")
                counters["updates"] += 1
                alpha = log_alpha.detach().exp()
                with torch.no_grad():
                    next_action, log_density = actor(batch["next_obs"])
                    value = targets(batch["next_obs"], next_action).amin(0) - alpha * log_density
                    # A time limit ends an episode, not what would have followed.
                    wanted = batch["reward"] + args.gamma * ~batch["terminated"] * value
                errors = critics(batch["obs"], batch["action"]) - wanted
                step_optimizer(critic_optimizer, errors.square().mean(1).sum())

                if counters["updates"] % args.actor_every == 0:
                    for _ in range(args.actor_every):
                        alpha = log_alpha.detach().exp()
                        new_action, log_density = actor(batch["obs"])
                        value = critics(batch["obs"], new_action).amin(0)
                        step_optimizer(actor_optimizer, (alpha * log_density - value).mean())
                        surplus = log_density.detach().mean() + wanted_entropy
                        step_optimizer(alpha_optimizer, -log_alpha.exp() * surplus)

                if counters["updates"] % args.target_every == 0:
                    with torch.no_grad():
                        pairs = zip(targets.parameters(), critics.parameters(), strict=True)
                        for slow, fast in pairs:
                            slow.lerp_(fast, args.tau)

            engine.tick(step)  # (4) the last statement: the state with which the next step begins
        if report.next_step < args.total_steps:
            engine.close(final=args.total_steps - 1)  # (5) waits until it is durable
    envs.close()


def parse_arguments() -> Args:
    """Read the command line; every setting has a default."""
    parser = argparse.ArgumentParser(description="SAC that survives kill -9")
    for field in fields(Args):
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=type(field.default), default=field.default)
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    train(parse_arguments())
