"""A small DQN in TorchRL's own parts, as scripts write it; every part that carries state is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers.samplers import RandomSampler, SamplerWithoutReplacement
from torchrl.envs import Compose, GymEnv, StepCounter, Transform, TransformedEnv, VecNorm
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, HardUpdate

from pyengine.integrations.torchrl import RingStorage

CAPACITY = 100
BATCH = 16
FRAMES_PER_BATCH = 8
RANDOM_FRAMES = 24
FRAMES = 240
TARGET_INTERVAL = 5


class Counting(Transform):
    """A transform of a user's, with a count in a plain attribute that the reward depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def _step(self, tensordict: Any, next_tensordict: Any) -> Any:
        self.calls += 1
        next_tensordict["reward"] = next_tensordict["reward"] + self.calls % 5
        return next_tensordict

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return tensordict_reset


@dataclass
class Parts:
    """Everything that a script makes."""

    collector: Any
    buffer: Any
    policy: Any
    exploration: Any
    loss: Any
    updater: Any
    optimizer: Any
    scheduler: Any
    report: Any = None
    """What a restore found."""

    @property
    def env(self) -> Any:
        return self.collector.env

    @property
    def tracked(self) -> dict[str, Any]:
        """What the script tracks by name."""
        return {
            "policy": self.policy,
            "loss": self.loss,
            "updater": self.updater,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
        }


def make_env() -> Any:
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    transforms = Compose(StepCounter(), VecNorm(in_keys=["observation"]), Counting())
    return TransformedEnv(env, transforms)


def _buffer(storage: Any, **settings: Any) -> Any:
    return TensorDictReplayBuffer(storage=storage, batch_size=BATCH, **settings)


def _random(storage: Any) -> Any:
    return _buffer(storage, sampler=RandomSampler())


def _slices(storage: Any) -> Any:
    sampler = SliceSampler(
        num_slices=4, traj_key=("collector", "traj_ids"), strict_length=False, cache_values=True
    )
    return _buffer(storage, sampler=sampler)


def _without_replacement(storage: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    return ReplayBuffer(
        storage=storage,
        sampler=SamplerWithoutReplacement(),
        batch_size=BATCH,
        generator=generator,
    )


BUFFERS: dict[str, Callable[[Any], Any]] = {
    "random": _random,
    "slices": _slices,
    "without replacement": _without_replacement,
}


def make(
    name: str, *, stock: bool = False, env: Any = None, seed: int = 1, **storage_settings: Any
) -> Parts:
    """Make a script's parts, seeded; with `stock` over LazyTensorStorage."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    env = make_env() if env is None else env
    env.set_seed(seed)
    net = MLP(in_features=4, out_features=2, num_cells=[16])
    value = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
    exploration = EGreedyModule(
        env.action_spec, eps_init=1.0, eps_end=0.1, annealing_num_steps=FRAMES
    )
    policy = TensorDictSequential(value, exploration)
    loss = DQNLoss(value, delay_value=True, action_space=env.action_spec)
    loss.make_value_estimator(gamma=0.9)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)
    collector = Collector(
        env,
        policy,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=FRAMES,
        init_random_frames=RANDOM_FRAMES,
    )
    storage = LazyTensorStorage(CAPACITY) if stock else RingStorage(CAPACITY, **storage_settings)
    return Parts(
        collector=collector,
        buffer=BUFFERS[name](storage),
        policy=policy,
        exploration=exploration,
        loss=loss,
        updater=HardUpdate(loss, value_network_update_interval=TARGET_INTERVAL),
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.9),
    )


def learn(parts: Parts, note: Callable[[Any], None] = lambda _: None) -> None:
    """Make two gradient steps; `note` is told the indices that were drawn."""
    for _ in range(2):
        batch, info = parts.buffer.sample(return_info=True)
        note(info["index"])
        loss = parts.loss(batch)["loss"]
        parts.optimizer.zero_grad()
        loss.backward()
        parts.optimizer.step()
        parts.updater.step()
    parts.scheduler.step()


def steps_of(buffer: Any, count: int) -> Any:
    """Return the first `count` elements of a buffer, copied, as new data."""
    return buffer.storage.get(slice(0, count)).clone()
