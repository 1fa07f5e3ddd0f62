"""cpprb: ReplayBuffer, PrioritizedReplayBuffer, save_transitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer, ReplayBuffer

from benchmarks.rivals.replay import ReplayContestant
from benchmarks.rows import Columns, Rows


class Replay(ReplayContestant):
    def __init__(self, rows: Rows, capacity: int, directory: Path) -> None:
        super().__init__(rows, capacity, directory)
        fields = {
            name: {"shape": shape or 1, "dtype": np.dtype(dtype)}
            for name, shape, dtype in rows.fields
        }
        self.buffer = self._make(capacity, fields)
        self._model: Any = None

    def _make(self, capacity: int, fields: dict[str, dict[str, Any]]) -> Any:
        return ReplayBuffer(capacity, fields)

    def many_rows(self, rows: Columns) -> Columns:
        return rows

    def extend(self, form: Columns) -> None:
        self.buffer.add(**form)

    def sample(self, count: int) -> Any:
        return self.buffer.sample(count)

    def arrays(self, batch: Any) -> Columns:
        return {name: batch[name] for name, _, _ in self.rows.fields}

    def one_row(self, row: Columns) -> dict[str, Any]:
        return {name: column[0] for name, column in row.items()}

    def add(self, form: dict[str, Any]) -> None:
        self.buffer.add(**form)

    def change(self) -> None:
        from benchmarks.models import change, small_model

        if self._model is None:
            self._model = small_model()
        change(self._model)

    def save(self, place: Path) -> None:
        import torch

        self.buffer.save_transitions(str(place / "replay.npz"))
        torch.save(self._model.state_dict(), place / "model.pth")

    def load(self, place: Path) -> None:
        self.buffer.load_transitions(str(place / "replay.npz"))


class Prioritized(Replay):
    _warmed = False

    def _make(self, capacity: int, fields: dict[str, dict[str, Any]]) -> Any:
        return PrioritizedReplayBuffer(capacity, fields, alpha=0.6)

    def warm(self, count: int) -> None:
        """Give every row a priority of its own, once."""
        rng = np.random.default_rng(3)
        self._priorities = rng.random(count).astype(np.float32)
        if not self._warmed:
            self._warmed = True
            stored = self.buffer.get_stored_size()
            self.buffer.update_priorities(np.arange(stored), rng.random(stored).astype(np.float32))

    def sample_and_update(self, count: int) -> None:
        batch = self.buffer.sample(count, beta=0.4)
        self.buffer.update_priorities(batch["indexes"], self._priorities)
