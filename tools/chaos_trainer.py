"""The agent that chaos is let loose on: double DQN on CartPole, which learns within minutes.

    python tools/chaos_trainer.py --run-dir RUN --witness DIR --seed 1

An ordinary script of a pyengine user but for one thing: it keeps a diary (chaos_diary) outside of
the run, so that somebody can judge afterwards what a fault has cost. It knows of no fault, except
that SIGUSR1 makes it hang for ever, as a deadlock would.
"""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from chaos_diary import Diary
from torch import nn
from torch.nn import functional

import pyengine

SCHEMA = pyengine.Schema(
    {"obs": ((4,), "float32"), "next_obs": ((4,), "float32"), "action": "int64",
     "reward": "float32", "terminated": "bool", "truncated": "bool"},
    episode_end=("terminated", "truncated"),
)  # fmt: skip


class CartPole:
    """Gymnasium's CartPole-v1 with an observation at hand and a state that can be put back."""

    def __init__(self, seed: int) -> None:
        self._env: Any = gymnasium.make("CartPole-v1")
        self.observation, _ = self._env.reset(seed=seed)
        self.episode_return = 0.0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        self.observation, reward, terminated, truncated, _ = self._env.step(action)
        self.episode_return += float(reward)
        return self.observation, float(reward), terminated, truncated

    def reset(self) -> None:
        self.observation, _ = self._env.reset()
        self.episode_return = 0.0

    def get_state(self) -> dict[str, Any]:
        inner = self._env.unwrapped
        return {
            "physics": np.asarray(inner.state, np.float64),
            "elapsed": int(self._env.get_wrapper_attr("_elapsed_steps")),
            "random": inner.np_random.bit_generator.state,
            "observation": self.observation.copy(),
            "episode_return": self.episode_return,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        inner = self._env.unwrapped
        inner.state = np.asarray(state["physics"], np.float64)
        inner.steps_beyond_terminated = None
        self._env.set_wrapper_attr("_elapsed_steps", int(state["elapsed"]))
        inner.np_random.bit_generator.state = state["random"]
        self.observation = np.asarray(state["observation"], np.float32)
        self.episode_return = float(state["episode_return"])


class Adam:
    """Adam in a few lines: making torch's own imports a compiler, 4 s of each start."""

    def __init__(self, module: nn.Module, learning_rate: float) -> None:
        self._parameters = list(module.parameters())
        self._learning_rate = learning_rate
        self._first = [torch.zeros_like(p) for p in self._parameters]
        self._second = [torch.zeros_like(p) for p in self._parameters]
        self._count = 0

    @torch.no_grad()
    def step(self) -> None:
        self._count += 1
        rate = self._learning_rate / (1 - 0.9**self._count)
        for value, first, second in zip(self._parameters, self._first, self._second, strict=True):
            assert value.grad is not None
            first.lerp_(value.grad, 0.1)
            second.lerp_(value.grad.square(), 0.001)
            root = (second / (1 - 0.999**self._count)).sqrt_().add_(1e-8)
            value.addcdiv_(first, root, value=-rate)
            value.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"count": self._count, "first": self._first, "second": self._second}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._count = state["count"]
        for name, ours in (("first", self._first), ("second", self._second)):
            for tensor, saved in zip(ours, state[name], strict=True):
                tensor.copy_(saved)


def network() -> nn.Sequential:
    """Return the action values' network: two hidden layers of 64."""
    return nn.Sequential(
        nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )


def learn(policy: nn.Module, target: nn.Module, optimizer: Adam, batch: Any) -> None:
    """Make one step of double Q-learning, and let the target follow."""
    with torch.no_grad():
        best = policy(batch["next_obs"]).argmax(dim=1, keepdim=True)
        future = target(batch["next_obs"]).gather(1, best).squeeze(1)
        wanted = batch["reward"] + 0.99 * future * ~batch["terminated"]
    value = policy(batch["obs"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
    functional.smooth_l1_loss(value, wanted).backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), policy.parameters(), strict=True):
            slow.lerp_(fast, 0.01)


def train(args: argparse.Namespace, ring: Any, engine: Any, diary: Diary) -> None:
    """Train until `args.steps`, from wherever the run stands."""
    # With one thread the sums are exact; use_deterministic_algorithms() takes 4 s of each start.
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    env = CartPole(args.seed)
    policy, target = network(), network()
    target.load_state_dict(policy.state_dict())
    optimizer = Adam(policy, 1e-3)
    explorer = np.random.default_rng(args.seed)
    engine.track(
        policy=policy, target=target, optimizer=optimizer, replay=ring, explorer=explorer,
        env=pyengine.EnvironmentState(get=env.get_state, set=env.set_state),
    )  # fmt: skip
    report = engine.restore(replay=args.replay)
    diary.restored(report, rows=ring.total_count if report else 0)

    for step in range(report.next_step, args.steps):
        obs = env.observation
        if explorer.random() < max(0.05, 1.0 - step / args.exploration_steps):
            action = int(explorer.integers(2))
        else:
            with torch.no_grad():
                action = int(policy(torch.from_numpy(obs)).argmax())
        next_obs, reward, terminated, truncated = env.step(action)
        ring.add(
            obs=obs, next_obs=next_obs, action=action, reward=reward,
            terminated=terminated, truncated=truncated,
        )  # fmt: skip
        finished = terminated or truncated
        diary.step(step, action, ring.total_count, env.episode_return if finished else None)
        if finished:
            env.reset()
        if step >= args.learning_starts and step % 2 == 0:
            learn(policy, target, optimizer, ring.sample(64, device="cpu"))
        diary.taken(engine.tick(step))
    engine.close(final=args.steps - 1)
    diary.ended()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--witness", type=Path, required=True, help="where the diary is kept")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--capacity", type=int, default=10_000)
    parser.add_argument("--snapshot-every", type=int, default=400, metavar="STEPS")
    parser.add_argument("--learning-starts", type=int, default=500)
    parser.add_argument("--exploration-steps", type=int, default=6_000)
    parser.add_argument("--replay", choices=("exact", "latest"), default="latest")
    parser.add_argument("--drain-wait", type=float, default=30.0, metavar="SECONDS")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    print(f"agent {args.seed} starts", flush=True)
    signal.signal(signal.SIGUSR1, lambda *_: threading.Event().wait())
    with (
        Diary(args.witness) as diary,
        pyengine.ReplayBuffer(SCHEMA, capacity=args.capacity, seed=args.seed) as ring,
        pyengine.SnapshotEngine(
            args.run_dir,
            every_steps=args.snapshot_every,
            budget=None,
            on_damage="drop",
            drain_wait=args.drain_wait,
        ) as engine,
    ):
        train(args, ring, engine, diary)


if __name__ == "__main__":
    main()
