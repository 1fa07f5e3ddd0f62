"""Training by a table of hyperparameters, as RL Baselines3 Zoo does it, resumable at any moment.

    python examples/sb3_zoo.py --algo ppo --env CartPole-v1
    python examples/sb3_zoo.py --algo sac --env Pendulum-v1 --hyperparams learning_starts:500

Kill it however you like and start the same command again. The table names SnapshotCallback by its
import path; in the Zoo's own YAML files the same lines do it, nothing of the Zoo has to change:

    callback:
      - pyengine.integrations.sb3.SnapshotCallback:
          run_dir: runs/zoo-pendulum
          every_steps: 2000
"""

from __future__ import annotations

import argparse
import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stable_baselines3 as sb3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {
    "a2c": sb3.A2C, "dqn": sb3.DQN, "ppo": sb3.PPO, "sac": sb3.SAC, "td3": sb3.TD3
}  # fmt: skip
SNAPSHOTS = "pyengine.integrations.sb3.SnapshotCallback"
HYPERPARAMETERS: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo", "CartPole-v1"): {
        "n_envs": 8, "n_timesteps": 100_000, "policy": "MlpPolicy", "n_steps": 32,
        "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0,
        "learning_rate": "lin_0.001", "clip_range": "lin_0.2", "normalize": True,
    },
    ("sac", "Pendulum-v1"): {
        "n_envs": 2, "n_timesteps": 20_000, "policy": "MlpPolicy", "learning_rate": "lin_0.001",
        "learning_starts": 1_000, "normalize": {"norm_reward": False},
    },
}  # fmt: skip


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; every setting has a default."""
    parser = argparse.ArgumentParser(description="the Zoo's way of training, that survives kill -9")
    parser.add_argument("--algo", default="ppo", choices=ALGORITHMS)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--folder", default="runs/sb3-zoo", help="of the run and of its logs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--eval-freq", type=int, default=5_000, metavar="STEPS")
    parser.add_argument("--snapshot-every", type=int, default=2_000, metavar="STEPS")
    parser.add_argument("--hyperparams", nargs="*", default=[], metavar="NAME:VALUE")
    return parser.parse_args(argv)


def read_hyperparameters(args: argparse.Namespace) -> dict[str, Any]:
    """Return the entry of the table, what the command line says instead in it."""
    found = dict(HYPERPARAMETERS[args.algo, args.env])
    found["callback"] = [
        {SNAPSHOTS: {"run_dir": f"{args.folder}/run", "every_steps": args.snapshot_every}}
    ]
    for text in args.hyperparams:
        name, _, value = text.partition(":")
        found[name] = ast.literal_eval(value)
    return found


def schedule(value: Any) -> Any:
    """Return what "lin_0.001" means, a rate that falls to zero; other values as they are."""
    if not isinstance(value, str) or not value.startswith("lin_"):
        return value
    initial = float(value.removeprefix("lin_"))
    return lambda progress_remaining: progress_remaining * initial


def imported(path: str) -> Callable[..., Any]:
    """Return what an import path names."""
    module, _, name = path.rpartition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


class SaveNormalizer(BaseCallback):
    """Keeps the statistics that belong to the best model."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def _on_step(self) -> bool:
        normalizer = self.model.get_vec_normalize_env()
        if normalizer is not None:
            normalizer.save(str(self.path))
        return True


def make_env(args: argparse.Namespace, count: int, normalize: Any, *, is_eval: bool) -> VecEnv:
    """Return environments, normalised as the table says; those of evaluations learn nothing."""
    venv = make_vec_env(args.env, count, seed=args.seed + (1_000 if is_eval else 0))
    if not normalize:
        return venv
    options = dict(normalize) if isinstance(normalize, dict) else {}
    if is_eval:
        options |= {"training": False, "norm_reward": False}
    return VecNormalize(venv, **options)


def train(args: argparse.Namespace) -> BaseAlgorithm:
    """Make everything anew, as every start of the Zoo does, and learn."""
    table = read_hyperparameters(args)
    total, count = table.pop("n_timesteps"), table.pop("n_envs", 1)
    normalize, listed = table.pop("normalize", False), table.pop("callback", [])
    callbacks: list[BaseCallback] = [
        imported(path)(**options) for entry in listed for path, options in entry.items()
    ]
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    evaluation = EvalCallback(
        make_env(args, 1, normalize, is_eval=True),
        callback_on_new_best=SaveNormalizer(folder / "vecnormalize.pkl"),
        best_model_save_path=str(folder),
        log_path=str(folder),
        eval_freq=max(args.eval_freq // count, 1),
        n_eval_episodes=5,
    )
    settings = {name: schedule(value) for name, value in table.items()}
    env = make_env(args, count, normalize, is_eval=False)
    model = ALGORITHMS[args.algo](env=env, seed=args.seed, device="cpu", **settings)
    model.learn(total, callback=[*callbacks, evaluation])
    model.save(folder / f"{args.env}.zip")
    return model


if __name__ == "__main__":
    train(parse_arguments())
