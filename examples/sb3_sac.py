"""SAC of Stable-Baselines3 with normalised observations and rewards, resumable at any moment.

    python examples/sb3_sac.py --run-dir runs/sb3-pendulum
    python examples/sb3_sac.py --run-dir runs/sb3-cheetah --env HalfCheetah-v5    # needs MuJoCo

Kill it however you like (kill -9 is fine) and start the same command again: it goes on from the
newest snapshot, with the statistics of VecNormalize and the physics in mid-swing. The table of
`progress.csv` goes on too, because `append_logger` opens it for appending.
"""

from __future__ import annotations

import argparse

import torch
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from pyengine.integrations.sb3 import SnapshotCallback, append_logger


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; every setting has a default."""
    parser = argparse.ArgumentParser(description="SB3's SAC that survives kill -9")
    parser.add_argument("--run-dir", default="runs/sb3-sac", help="started again, it resumes here")
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--envs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="fixed: it decides float sums")
    parser.add_argument("--steps", type=int, default=100_000, help="counted over all starts")
    parser.add_argument("--capacity", type=int, default=1_000_000, help="rows over all envs")
    parser.add_argument("--snapshot-every", type=int, default=2_000, metavar="STEPS")
    parser.add_argument("--learning-starts", type=int, default=1_000)
    return parser.parse_args(argv)


def make_model(args: argparse.Namespace) -> SAC:
    """Return a model as any script would make it."""
    torch.set_num_threads(args.threads)
    env = VecNormalize(make_vec_env(args.env, n_envs=args.envs, seed=args.seed))
    return SAC(
        "MlpPolicy", env, buffer_size=args.capacity, learning_starts=args.learning_starts,
        gradient_steps=-1, seed=args.seed,
    )  # fmt: skip


def main() -> None:
    args = parse_arguments()
    model = make_model(args)
    model.set_logger(append_logger(f"{args.run_dir}-logs", ["stdout", "csv"]))
    snapshots = SnapshotCallback(args.run_dir, every_steps=args.snapshot_every)
    model.learn(args.steps, callback=snapshots)


if __name__ == "__main__":
    main()
