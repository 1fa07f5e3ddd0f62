"""Deep Q-learning on an Atari game in plain PyTorch, resumable at any moment, bit for bit.

    python examples/dqn_atari.py --run-dir runs/pong

Kill it however you like (kill -9 is fine), start the same command again, and it goes on from the
newest snapshot: networks, Adam moments, replay buffer, exploration, and the game in mid-rally.
Everything about pyengine is marked with (1) to (5).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from atari import Atari
from torch import nn
from torch.nn import functional

import pyengine

FRAMES = ((4, 84, 84), "uint8")

# (1) One row of the replay buffer: 56 KB, kept once, in shared memory.
SCHEMA = pyengine.Schema(
    {"obs": FRAMES, "next_obs": FRAMES, "action": "int64", "reward": "float32",
     "terminated": "bool", "truncated": "bool"},
    episode_end=("terminated", "truncated"),
)  # fmt: skip


class QNetwork(nn.Module):
    """The convolutional network of Mnih et al. 2015, from four 84 x 84 frames to action values."""

    def __init__(self, action_count: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512), nn.ReLU(),
            nn.Linear(512, action_count),
        )  # fmt: skip

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.layers(frames.float() / 255.0)


def learn(
    policy: QNetwork, target: QNetwork, optimizer: torch.optim.Optimizer, batch: Any, gamma: float
) -> float:
    """Make one gradient step on a batch of tensors; return the loss."""
    with torch.no_grad():
        next_value = target(batch["next_obs"]).amax(dim=1)
        wanted = batch["reward"] + gamma * next_value * ~batch["terminated"]
    value = policy(batch["obs"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
    loss = functional.smooth_l1_loss(value, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def train(
    args: argparse.Namespace,
    ring: Any,
    engine: Any,
    on_step: Callable[..., None] = lambda **_: None,
) -> None:
    """Train until `args.steps`, from wherever the run stands; `on_step` watches each step."""
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    env = Atari(args.game, args.seed)
    env.reset()
    policy, target = QNetwork(env.action_count), QNetwork(env.action_count)
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.learning_rate)
    explorer = np.random.default_rng(args.seed)
    counters = {"episodes": 0, "updates": 0}

    engine.track(  # (2) everything that the next step depends on
        policy=policy, target=target, optimizer=optimizer, replay=ring, explorer=explorer,
        counters=counters, env=pyengine.EnvironmentState(get=env.get_state, set=env.set_state),
    )  # fmt: skip
    engine.declare_level("exact")  # nothing else is drawn on: it goes on bit for bit
    report = engine.restore()  # (3) falsy, with next_step 0, on a fresh run

    for step in range(report.next_step, args.steps):
        obs = env.observation
        epsilon = max(args.final_epsilon, 1.0 - step / args.exploration_steps)
        if explorer.random() < epsilon:
            action = int(explorer.integers(env.action_count))
        else:
            with torch.no_grad():
                action = int(policy(torch.from_numpy(obs).unsqueeze(0)).argmax())

        next_obs, reward, terminated, truncated = env.step(action)
        ring.add(
            obs=obs, next_obs=next_obs, action=action, reward=reward,
            terminated=terminated, truncated=truncated,
        )  # fmt: skip
        if terminated or truncated:
            counters["episodes"] += 1
            env.reset()

        loss = None
        if step >= args.learning_starts and step % args.train_every == 0:
            batch = ring.sample(args.batch_size, device="cpu")
            loss = learn(policy, target, optimizer, batch, args.gamma)
            counters["updates"] += 1
        if step % args.target_every == 0:
            target.load_state_dict(policy.state_dict())

        engine.tick(step)  # (4) the last statement: the state with which the next step begins
        on_step(step=step, action=action, reward=reward, loss=loss)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; every setting has a default."""
    parser = argparse.ArgumentParser(description="DQN on Atari that survives kill -9")
    parser.add_argument("--run-dir", default="runs/pong", help="started again, it resumes here")
    parser.add_argument("--game", default="PongNoFrameskip-v4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="fixed: it decides float sums")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--capacity", type=int, default=100_000, help="rows of 56 KB each")
    parser.add_argument("--snapshot-every", type=int, default=10_000, metavar="STEPS")
    parser.add_argument("--learning-starts", type=int, default=10_000)
    parser.add_argument("--train-every", type=int, default=4)
    parser.add_argument("--target-every", type=int, default=1_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--exploration-steps", type=int, default=100_000)
    parser.add_argument("--final-epsilon", type=float, default=0.01)
    return parser.parse_args(argv)


def main() -> None:
    args = parse_arguments()
    with (
        pyengine.ReplayBuffer(SCHEMA, capacity=args.capacity, seed=args.seed) as ring,
        pyengine.SnapshotEngine(args.run_dir, every_steps=args.snapshot_every) as engine,
    ):
        train(args, ring, engine)  # (5) leaving the block drains and commits what is pending


if __name__ == "__main__":
    main()
