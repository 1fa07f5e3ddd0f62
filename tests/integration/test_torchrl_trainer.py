"""A torchrl.trainers.Trainer goes on by one line, and its checkpoints hold the buffer by links."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrl")

import torch
from processes import await_writers_end
from torchrl.checkpoint import Checkpoint
from torchrl.data import ReplayBuffer, TensorDictReplayBuffer
from torchrl.trainers import LogValidationReward, ReplayBufferTrainer, Trainer
from torchrl_models import BATCH, CAPACITY, FRAMES, make, make_env, steps_of
from torchrl_runs import QUICK, hashed

from pyengine.errors import ConfigError, ModelStateError
from pyengine.integrations.torchrl import (
    RingStorage,
    RowsCheckpointAdapter,
    SnapshotHook,
    TrainingRun,
)


class Log:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.values: list[tuple[str, float]] = []

    def log_scalar(self, name: str, value: float, **_: Any) -> None:
        self.values.append((name, float(value)))


def make_trainer(seed: int = 1, storage: Any = None) -> tuple[Any, Any]:
    """Return a trainer, whose evaluations draw from the process's generators, and its parts."""
    parts = make("random", seed=seed)
    buffer = TensorDictReplayBuffer(
        storage=RingStorage(CAPACITY) if storage is None else storage, batch_size=BATCH
    )
    trainer = Trainer(
        collector=parts.collector,
        total_frames=FRAMES,
        frame_skip=1,
        optim_steps_per_batch=2,
        loss_module=parts.loss,
        optimizer=parts.optimizer,
        progress_bar=False,
        logger=Log(),
        log_interval=16,
        seed=seed,
    )
    ReplayBufferTrainer(buffer, batch_size=BATCH, flatten_tensordicts=True).register(trainer)
    trainer.register_op("post_optim", parts.updater.step)
    trainer.register_op("post_steps", lambda: parts.exploration.step(8))
    trainer.register_module("target_updater", parts.updater)
    parts.buffer = buffer
    evaluation = make_env()
    LogValidationReward(
        record_interval=4, record_frames=5, frame_skip=1, policy_exploration=parts.policy,
        environment=evaluation,
    ).register(trainer)  # fmt: skip
    return trainer, parts


def digest(trainer: Any, parts: Any) -> dict[str, Any]:
    return {
        "loss": hashed(parts.loss.state_dict()),
        "policy": hashed(parts.policy.state_dict()),
        "optimizer": hashed(parts.optimizer.state_dict()),
        "rows": hashed(parts.buffer[:].clone()),
        "buffer": [len(parts.buffer), parts.buffer.write_count],
        "counters": [trainer.collected_frames, trainer._optim_count, parts.updater.counter],
        "generator": hashed(torch.get_rng_state()),
    }


def run_trainer(send: Callable[[Any], None], run_dir: Path | None, kill_at: int | None) -> None:
    trainer, parts = make_trainer()
    count = 0

    def die(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.register_op("post_loss", lambda batch: die() or batch)
    if run_dir is None:
        trainer.train()
        send(("end", digest(trainer, parts), None))
        return
    with SnapshotHook(run_dir, **{**QUICK, "every_steps": 32}) as hook:
        hook.register(trainer)
        trainer.train()
        send(("end", digest(trainer, parts), hook.report.global_step))


def test_a_trainer_that_was_killed_ends_as_one_that_was_not(
    start: Any, token: str, tmp_path: Path
) -> None:
    undisturbed = start(run_trainer, None, None)
    child = start(run_trainer, tmp_path / "run", 31)
    assert child.join() == -9
    await_writers_end(token)
    resumed = start(run_trainer, tmp_path / "run", None)
    _, stock, _ = undisturbed.receive("end")
    _, found, resumed_at = resumed.receive("end")
    assert resumed_at
    assert found == stock
    again = start(run_trainer, tmp_path / "run", None)
    _, _, resumed_at = again.receive("end")
    assert resumed_at == FRAMES, "a run that has all its frames makes none"


def test_trainers_that_are_never_at_rest_are_refused(tmp_path: Path) -> None:
    trainer, _ = make_trainer()
    trainer.async_collection = True
    with pytest.raises(ConfigError, match="async_collection"):
        SnapshotHook(tmp_path / "run").register(trainer)
    trainer, _ = make_trainer()
    trainer.collected_frames = 8
    SnapshotHook(tmp_path / "run").register(trainer)
    with pytest.raises(ModelStateError, match="8 frames"):
        trainer.train()
    trainer, _ = make_trainer()
    other = TensorDictReplayBuffer(storage=RingStorage(9), batch_size=2)
    trainer.register_module("second", ReplayBufferTrainer(other))
    SnapshotHook(tmp_path / "run").register(trainer)
    with pytest.raises(ConfigError, match="2 replay buffers"):
        trainer.train()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("form", ["directory", "archive"])
def test_a_checkpoint_holds_the_buffer_by_links(tmp_path: Path, form: Any) -> None:
    parts = make("without replacement")
    with TrainingRun(
        tmp_path / "run", replay_buffer=parts.buffer, collector=parts.collector, **QUICK
    ) as run:
        run.restore()
        for _, data in zip(range(15), parts.collector, strict=False):
            parts.buffer.extend(data.reshape(-1))
        parts.buffer.sample()
        checkpoint = Checkpoint(policy=parts.policy, replay_buffer=parts.buffer, format=form)
        checkpoint.register_adapter(ReplayBuffer, RowsCheckpointAdapter(run))
        path = checkpoint.save(tmp_path / "checkpoint")
        rows = hashed(parts.buffer[:].clone())
        parts.buffer.extend(steps_of(parts.buffer, 9))
    if form == "directory":
        files = [file for file in path.rglob("*.seg") if file.stat().st_nlink > 1]
        assert files, "rows were copied"
    before = sorted(file.name for file in path.parent.rglob("*"))
    for held in (0, 7):
        other = make("without replacement", seed=9)
        if held:
            other.buffer.extend(steps_of(parts.buffer, held))
        loading = Checkpoint(policy=other.policy, replay_buffer=other.buffer)
        loading.register_adapter(ReplayBuffer, RowsCheckpointAdapter())
        assert loading.load(path).loaded == {"policy", "replay_buffer"}
        assert hashed(other.buffer[:].clone()) == rows
        assert other.buffer.write_count == 120
        first = other.buffer.sampler._sample_list
        assert torch.equal(first, parts.buffer.sampler._sample_list[: len(first)])
        other.buffer.extend(steps_of(parts.buffer, 5))
        with pytest.raises(ConfigError, match="TrainingRun"):
            loading.save(tmp_path / "refused")
    assert sorted(file.name for file in path.parent.rglob("*")) == before
