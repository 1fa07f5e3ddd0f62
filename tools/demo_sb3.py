"""One arm of the demo with Stable-Baselines3: the model of examples/sb3_dqn_atari.py, unchanged.

    PYTHONPATH=examples python tools/demo_sb3.py --saves callback --arm-dir DIR [its options]

`--saves nothing` is the library alone. `--saves callback` adds SnapshotCallback. `--saves zip` does
what the library's guide shows: CheckpointCallback with the replay buffer, and at a start the newest
checkpoint is loaded, its replay buffer too, and learn() gets what is left with
reset_num_timesteps=False.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sb3_dqn_atari
import torch._dynamo  # noqa: F401  the first optimizer would load it, in the middle of a resume
from demo_log import ArmLog, sha256, written_bytes
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback

from pyengine.integrations.sb3 import SnapshotCallback

ROW_FIELDS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
CHECKPOINT = re.compile(r"rl_model_(\d+)_steps\.zip")


class StopWatch:
    """What happened in the step that is being made."""

    def __init__(self) -> None:
        self.stall_ns = 0
        self.last_ns = 0
        self.updates = 0
        self.step: tuple[int, int, int] | None = None
        self.has_updated = False


class TimedSnapshots(SnapshotCallback):
    """Notes how long the beginning of a rollout took where it began a snapshot."""

    def __init__(self, run_dir: str, every_steps: int, watch: StopWatch) -> None:
        super().__init__(run_dir, every_steps=every_steps)
        self.watch = watch

    def _on_rollout_start(self) -> None:
        before, begin = self._last, time.perf_counter_ns()
        super()._on_rollout_start()
        if self._last is not before:
            self.watch.stall_ns = time.perf_counter_ns() - begin

    def _on_training_end(self) -> None:
        before = self._last
        super()._on_training_end()
        if self._last is not None and self._last is not before:
            self.watch.stall_ns = int(self._last.stall_seconds * 1e9)


class TimedCheckpoints(CheckpointCallback):
    """Notes how long a step took in which the model and its replay buffer were saved."""

    def __init__(self, save_freq: int, save_path: str, watch: StopWatch) -> None:
        super().__init__(save_freq, save_path, save_replay_buffer=True)
        self.watch = watch

    def _on_step(self) -> bool:
        begin = time.perf_counter_ns()
        super()._on_step()
        if self.n_calls % self.save_freq == 0:
            self.watch.stall_ns = time.perf_counter_ns() - begin
        return True


class Recorder(BaseCallback):
    """Write one record per step, once all that belongs to it is done: its update and its save."""

    def __init__(self, log: ArmLog, watch: StopWatch) -> None:
        super().__init__()
        self.log = log
        self.watch = watch

    def _on_training_start(self) -> None:
        self.log.event("restored", next_step=self.model.num_timesteps)
        self.watch.updates = self.model._n_updates
        self.watch.last_ns = time.monotonic_ns()

    def _on_rollout_start(self) -> None:
        self._write()

    def _on_step(self) -> bool:
        self._write()
        step = self.model.num_timesteps - 1
        self.watch.step = (step, int(self.locals["actions"][0]), int(self.locals["rewards"][0]))
        return True

    def _on_training_end(self) -> None:
        self._write()

    def _write(self) -> None:
        watch = self.watch
        if watch.step is None:
            return
        step, action, reward = watch.step
        now = time.monotonic_ns()
        loss = float("nan")
        if self.model._n_updates > watch.updates:
            loss = float(self.model.logger.name_to_value["train/loss"])
            watch.updates = self.model._n_updates
            if not watch.has_updated:
                watch.has_updated = True
                self.log.event("first_update")
        saved = watch.stall_ns > 0
        self.log.step(
            step, now, now - watch.last_ns, watch.stall_ns, 0, loss, action, reward, False, saved
        )
        watch.step, watch.stall_ns, watch.last_ns = None, 0, time.monotonic_ns()


def newest_checkpoint(directory: Path) -> tuple[Path, Path] | None:
    """Return model and replay buffer of the newest checkpoint that has both."""
    steps = [int(found[1]) for found in map(CHECKPOINT.fullmatch, _names(directory)) if found]
    for step in sorted(steps, reverse=True):
        rows = directory / f"rl_model_replay_buffer_{step}_steps.pkl"
        if rows.exists():
            return directory / f"rl_model_{step}_steps.zip", rows
    return None


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.glob("*.zip")]


def train(saves: str, options: argparse.Namespace, log: ArmLog) -> DQN:
    """Train to the end, from wherever the arm stands; return the model."""
    model = sb3_dqn_atari.make_model(options)
    watch = StopWatch()
    recorder = Recorder(log, watch)
    if saves == "nothing":
        return model.learn(options.steps, callback=[recorder])
    if saves == "callback":
        snapshots = TimedSnapshots(options.run_dir, options.snapshot_every, watch)
        return model.learn(options.steps, callback=[snapshots, recorder])
    checkpoints = TimedCheckpoints(options.snapshot_every, options.run_dir, watch)
    newest = newest_checkpoint(Path(options.run_dir))
    if newest is None:
        return model.learn(options.steps, callback=[checkpoints, recorder])
    model = DQN.load(newest[0], env=model.get_env())
    model.load_replay_buffer(newest[1])
    return model.learn(
        options.steps - model.num_timesteps,
        callback=[checkpoints, recorder],
        reset_num_timesteps=False,
    )


def digests(model: DQN) -> dict[str, str]:
    """Return the SHA-256 of parameters, of Adam's moments and of the valid rows."""
    adam = model.policy.optimizer.state_dict()["state"]
    moments = [adam[i][key] for i in sorted(adam) for key in ("step", "exp_avg", "exp_avg_sq")]
    return {
        "parameters": sha256(tensor.detach().numpy() for tensor in model.policy.parameters()),
        "moments": sha256(tensor.numpy() for tensor in moments),
        "rows": sha256(_rows(model.replay_buffer)),
    }


def _rows(buffer: Any) -> Iterator[np.ndarray]:
    for begin in range(0, buffer.size(), 250):
        end = min(begin + 250, buffer.size())
        for name in ROW_FIELDS:
            yield np.asarray(getattr(buffer, name)[begin:end])


def state_bytes(model: DQN) -> int:
    """Return the bytes of networks and Adam moments: what each save has to write anew."""
    adam = model.policy.optimizer.state_dict()["state"]
    tensors = [*model.policy.parameters(), *(t for entry in adam.values() for t in entry.values())]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", choices=("nothing", "callback", "zip"), required=True)
    parser.add_argument("--arm-dir", type=Path, required=True)
    args, rest = parser.parse_known_args()
    options = sb3_dqn_atari.parse_arguments([*rest, "--run-dir", str(args.arm_dir / "run")])
    log = ArmLog(args.arm_dir)
    log.event("imported")
    model = train(args.saves, options, log)
    log.event(
        "finished", written=written_bytes(), state_bytes=state_bytes(model), digests=digests(model)
    )


if __name__ == "__main__":
    main()
