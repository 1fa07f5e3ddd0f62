"""DQN of Stable-Baselines3 on an Atari game, resumable at any moment, bit for bit.

    python examples/sb3_dqn_atari.py --run-dir runs/sb3-pong

Kill it however you like (kill -9 is fine) and start the same command again: it goes on from the
newest snapshot, in mid-rally. All there is about pyengine is the callback. The game is one without
sticky actions: with them (ALE/Pong-v5) the emulator hides a part of its state, so that each start
begins new episodes, and says so.
"""

from __future__ import annotations

import argparse

import ale_py
import gymnasium
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from pyengine.integrations.sb3 import SnapshotCallback


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; every setting has a default."""
    parser = argparse.ArgumentParser(description="SB3's DQN on Atari that survives kill -9")
    parser.add_argument("--run-dir", default="runs/sb3-pong", help="started again, it resumes here")
    parser.add_argument("--game", default="PongNoFrameskip-v4")
    parser.add_argument("--envs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="fixed: it decides float sums")
    parser.add_argument("--steps", type=int, default=1_000_000, help="counted over all starts")
    parser.add_argument("--capacity", type=int, default=100_000, help="rows of 56 KB each")
    parser.add_argument("--snapshot-every", type=int, default=10_000, metavar="STEPS")
    parser.add_argument("--learning-starts", type=int, default=10_000)
    return parser.parse_args(argv)


def make_model(args: argparse.Namespace) -> DQN:
    """Return a model as any script would make it."""
    gymnasium.register_envs(ale_py)
    torch.set_num_threads(args.threads)
    env = VecFrameStack(make_atari_env(args.game, n_envs=args.envs, seed=args.seed), n_stack=4)
    return DQN(
        "CnnPolicy", env, buffer_size=args.capacity, learning_starts=args.learning_starts,
        train_freq=4, target_update_interval=1_000, exploration_fraction=0.1,
        exploration_final_eps=0.01, seed=args.seed, verbose=1,
    )  # fmt: skip


def main() -> None:
    args = parse_arguments()
    model = make_model(args)
    snapshots = SnapshotCallback(args.run_dir, every_steps=args.snapshot_every)
    model.learn(args.steps, callback=snapshots)


if __name__ == "__main__":
    main()
