"""A replay of plain NumPy arrays, as single-file scripts have it, and ways of saving it with the
learner that belong to no replay library: safetensors + npz, and two asynchronous checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.pending import Pending
from benchmarks.rivals.replay import ReplayContestant
from benchmarks.rivals.savers import dcp_async_save, torchsnapshot_async_take
from benchmarks.rows import Columns, Rows


class Replay(ReplayContestant):
    """`model` is what is saved beside the rows."""

    model: Any

    def __init__(self, rows: Rows, capacity: int, directory: Path) -> None:
        super().__init__(rows, capacity, directory)
        self.columns = {
            name: np.zeros((capacity, *shape), dtype) for name, shape, dtype in rows.fields
        }
        self._rng = np.random.default_rng(1)
        self._head = 0
        self._size = 0

    def many_rows(self, rows: Columns) -> Columns:
        return rows

    def extend(self, form: Columns) -> None:
        count = len(form["reward"])
        places = np.arange(self._head, self._head + count) % self.capacity
        for name, column in self.columns.items():
            column[places] = form[name]
        self._advance(count)

    def one_row(self, row: Columns) -> Columns:
        return row

    def add(self, form: Columns) -> None:
        for name, column in self.columns.items():
            column[self._head] = form[name][0]
        self._advance(1)

    def sample(self, count: int) -> Columns:
        places = self._rng.integers(self._size, size=count)
        return {name: column[places] for name, column in self.columns.items()}

    def arrays(self, batch: Columns) -> Columns:
        return batch

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the arrays as tensors that share their memory."""
        return {name: torch.from_numpy(column) for name, column in self.columns.items()}

    def _advance(self, count: int) -> None:
        self._head = (self._head + count) % self.capacity
        self._size = min(self._size + count, self.capacity)


class Npz(Replay):
    def save(self, place: Path) -> None:
        from safetensors.torch import save_file

        np.savez(place / "replay.npz", **self.columns)
        save_file(dict(_tensors(self.model.state_dict())), place / "state.safetensors")


class DistributedCheckpoint(Replay):
    def save(self, place: Path) -> Pending:
        return dcp_async_save({"learner": self.model.state_dict(), "replay": self.tensors()}, place)


class Torchsnapshot(Replay):
    def save(self, place: Path) -> Pending:
        from torchsnapshot import StateDict

        replay = StateDict(**self.tensors())
        return torchsnapshot_async_take({"learner": self.model, "replay": replay}, place)


def _tensors(state: Any, prefix: str = "state") -> Any:
    """Yield every tensor of nested state dicts by a name that safetensors takes."""
    items = state.items() if isinstance(state, dict) else enumerate(state)
    for key, value in items:
        if isinstance(value, torch.Tensor):
            yield f"{prefix}.{key}", value.detach()
        elif isinstance(value, (dict, list)):
            yield from _tensors(value, f"{prefix}.{key}")
