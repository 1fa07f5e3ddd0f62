"""DQN on CartPole by torchrl.trainers.Trainer, resumable by two lines.

    python examples/torchrl_dqn.py --frames 20000
    kill -9 it at any time, and start it again

Needs `pip install "pyengine-rl[torchrl]"`.
"""

from __future__ import annotations

import argparse

import torch
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import TensorDictReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate
from torchrl.trainers import ReplayBufferTrainer, Trainer

from pyengine.integrations.torchrl import RingStorage, SnapshotHook

FRAMES_PER_BATCH = 64


def make_trainer(frames: int, seed: int) -> Trainer:
    """Return a trainer; nothing in it knows of pyengine but the storage."""
    torch.manual_seed(seed)
    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), StepCounter())
    env.set_seed(seed)
    net = MLP(in_features=4, out_features=2, num_cells=[64, 64])
    value = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
    explore = EGreedyModule(env.action_spec, annealing_num_steps=max(1, frames // 2))
    loss = DQNLoss(value, delay_value=True, action_space=env.action_spec)
    loss.make_value_estimator(gamma=0.99)
    trainer = Trainer(
        collector=Collector(
            env,
            TensorDictSequential(value, explore),
            frames_per_batch=FRAMES_PER_BATCH,
            total_frames=frames,
            init_random_frames=4 * FRAMES_PER_BATCH,
        ),
        total_frames=frames,
        frame_skip=1,
        optim_steps_per_batch=8,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), lr=1e-3),
        progress_bar=False,
    )
    buffer = TensorDictReplayBuffer(storage=RingStorage(10_000), batch_size=128)
    ReplayBufferTrainer(buffer, flatten_tensordicts=True).register(trainer)
    trainer.register_op("post_optim", SoftUpdate(loss, eps=0.995).step)
    trainer.register_op("post_steps", lambda: explore.step(FRAMES_PER_BATCH))
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="runs/torchrl_dqn", help="the run directory")
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=2_000, help="frames between snapshots")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    trainer = make_trainer(options.frames, options.seed)
    with SnapshotHook(options.run, every_steps=options.every) as hook:
        hook.register(trainer)
        trainer.train()
        print(hook.report)


if __name__ == "__main__":
    main()
