"""SAC of Tianshou with normalised observations, resumable at any moment.

    python examples/tianshou_sac.py --run-dir runs/tianshou-pendulum

Kill it however you like (kill -9 is fine) and start the same command again: it goes on from the
newest snapshot, in the epoch that it was in, with the physics in mid-swing.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou.algorithm import SAC
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, VectorEnvNormObs
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

from pyengine.integrations.tianshou import SnapshotRun


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; every setting has a default."""
    parser = argparse.ArgumentParser(description="Tianshou's SAC that survives kill -9")
    parser.add_argument("--run-dir", default="runs/tianshou-sac", help="started again, it resumes")
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--envs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="fixed: it decides float sums")
    parser.add_argument("--epochs", type=int, default=20, help="counted over all starts")
    parser.add_argument("--epoch-steps", type=int, default=5_000, metavar="STEPS")
    parser.add_argument("--capacity", type=int, default=1_000_000, help="rows over all envs")
    parser.add_argument("--snapshot-every", type=int, default=2_000, metavar="STEPS")
    parser.add_argument("--learning-starts", type=int, default=1_000)
    parser.add_argument("--hidden", type=int, default=128)
    return parser.parse_args(argv)


def make_environments(args: argparse.Namespace, count: int, seed: int) -> VectorEnvNormObs:
    """Return environments of one seed, side by side."""
    made = DummyVectorEnv([lambda: gymnasium.make(args.env)] * count)
    made.seed(seed)
    return VectorEnvNormObs(made)


def make_algorithm(args: argparse.Namespace) -> Any:
    """Return an algorithm as any script would make it."""
    env = gymnasium.make(args.env)
    seen, acts = int(np.prod(env.observation_space.shape)), int(np.prod(env.action_space.shape))
    sizes = [args.hidden, args.hidden]
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=seen, hidden_sizes=sizes), action_shape=acts,
        unbounded=True, conditioned_sigma=True,
    )  # fmt: skip
    critics = [
        ContinuousCritic(preprocess_net=Net(state_shape=seen + acts, hidden_sizes=sizes))
        for _ in range(2)
    ]
    adam = AdamOptimizerFactory(lr=3e-4)
    return SAC(
        policy=SACPolicy(
            actor=actor, action_space=env.action_space, observation_space=env.observation_space
        ),
        policy_optim=adam, critic=critics[0], critic_optim=adam, critic2=critics[1],
        critic2_optim=adam, alpha=AutoAlpha(-float(acts), 0.0, adam),
    )  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    algorithm = make_algorithm(args)
    training = Collector(
        algorithm, make_environments(args, args.envs, args.seed),
        VectorReplayBuffer(args.capacity, args.envs), exploration_noise=True,
    )  # fmt: skip
    training.reset()
    training.collect(n_step=args.learning_starts, random=True)
    params = OffPolicyTrainerParams(
        training_collector=training,
        test_collector=Collector(algorithm, make_environments(args, 1, args.seed + 100)),
        max_epochs=args.epochs, epoch_num_steps=args.epoch_steps,
        collection_step_num_env_steps=args.envs, update_step_num_gradient_steps_per_sample=0.5,
        test_step_num_episodes=2, batch_size=128,
    )  # fmt: skip
    run = SnapshotRun(args.run_dir, every_steps=args.snapshot_every)
    print(run.run_training(algorithm, params).best_reward)


if __name__ == "__main__":
    main()
