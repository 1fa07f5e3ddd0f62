"""TorchRL: TensorDictReplayBuffer over memory and over memory-mapped files, and its checkpoints."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.checkpoint import Checkpoint
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer

from benchmarks.models import change, small_model
from benchmarks.rivals.replay import ReplayContestant
from benchmarks.rows import Columns, Rows

KEYS: dict[str, Any] = {
    "obs": "observation", "next_obs": ("next", "observation"), "action": "action",
    "reward": ("next", "reward"), "terminated": ("next", "terminated"),
    "truncated": ("next", "truncated"),
}  # fmt: skip


class Replay(ReplayContestant):
    """In memory (LazyTensorStorage), saved by `dumps`."""

    batch_size = 256

    def __init__(self, rows: Rows, capacity: int, directory: Path) -> None:
        super().__init__(rows, capacity, directory)
        storage = self._storage()
        self.buffer = TensorDictReplayBuffer(storage=storage, batch_size=self.batch_size)
        self.model = small_model()

    def _storage(self) -> Any:
        return LazyTensorStorage(self.capacity)

    def many_rows(self, rows: Columns) -> Any:
        values = {KEYS[name]: torch.from_numpy(column) for name, column in rows.items()}
        count = len(rows["reward"])
        rows_dict = TensorDict({}, batch_size=[count])
        for key, value in values.items():
            rows_dict[key] = value
        return rows_dict

    def extend(self, form: Any) -> None:
        self.buffer.extend(form)

    def sample(self, count: int) -> Any:
        return self.buffer.sample() if count == self.batch_size else self.buffer.sample(count)

    def arrays(self, batch: Any) -> Columns:
        names = [name for name, _, _ in self.rows.fields]
        return {name: batch[KEYS[name]].numpy() for name in names}

    def one_row(self, row: Columns) -> Any:
        return self.many_rows(row)[0]

    def add(self, form: Any) -> None:
        self.buffer.add(form)

    def change(self) -> None:
        change(self.model)

    def save(self, place: Path) -> None:
        self.buffer.dumps(place / "replay")
        torch.save(self.model.state_dict(), place / "model.pth")

    def load(self, place: Path) -> None:
        self.buffer.loads(place / "replay")


class Memmap(Replay):
    """In memory-mapped files (LazyMemmapStorage), saved by `dumps`."""

    def _storage(self) -> Any:
        scratch = mkdtemp(prefix="scratch-", dir=self.directory)
        return LazyMemmapStorage(self.capacity, scratch_dir=scratch)


class Checkpointed(Replay):
    """In memory, saved with the model by torchrl.checkpoint.Checkpoint."""

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(replay=self.buffer, model=self.model)

    def save(self, place: Path) -> None:
        self._checkpoint().save(place / "checkpoint")

    def load(self, place: Path) -> None:
        self._checkpoint().load(place / "checkpoint")
