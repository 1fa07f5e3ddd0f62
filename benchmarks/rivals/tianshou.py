"""Tianshou: ReplayBuffer, saved as HDF5 or as a pickle, the two ways its documentation names."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tianshou.data import Batch, ReplayBuffer

from benchmarks.models import change, small_model
from benchmarks.rivals.replay import ReplayContestant
from benchmarks.rows import Columns, Rows

NAMES = {
    "obs": "obs", "next_obs": "obs_next", "action": "act", "reward": "rew",
    "terminated": "terminated", "truncated": "truncated",
}  # fmt: skip


class Replay(ReplayContestant):
    """Where rows have no next_obs, `ignore_obs_next=True`, the library's own way of that."""

    def __init__(self, rows: Rows, capacity: int, directory: Path) -> None:
        super().__init__(rows, capacity, directory)
        self.buffer = ReplayBuffer(capacity, ignore_obs_next=not rows.has("next_obs"))
        self.model = small_model()

    def many_rows(self, rows: Columns) -> Columns:
        return rows

    def extend(self, form: Columns) -> None:
        """Write the arrays directly: the library has no call for many rows. For filling alone."""
        buffer, count = self.buffer, len(form["reward"])
        if len(buffer) == 0:
            for row in self.rows.chunks(0, 1):
                buffer.add(self.one_row(row))
            buffer.reset()
        places = np.arange(buffer._insertion_idx, buffer._insertion_idx + count) % buffer.maxsize
        for name, column in form.items():
            buffer._meta[NAMES[name]][places] = column
        buffer._meta["done"][places] = form["terminated"] | form["truncated"]
        buffer._size = min(buffer._size + count, buffer.maxsize)
        buffer._insertion_idx = (buffer._insertion_idx + count) % buffer.maxsize
        buffer.last_index = np.array([(buffer._insertion_idx - 1) % buffer.maxsize])

    def sample(self, count: int) -> Any:
        return self.buffer.sample(count)

    def arrays(self, batch: Any) -> Columns:
        rows, _ = batch
        names = [name for name, _, _ in self.rows.fields]
        return {name: rows[NAMES[name]] for name in names}

    def one_row(self, row: Columns) -> Any:
        """Return a Batch without a leading axis, as the collector hands rows over."""
        values = {NAMES[name]: column[0] for name, column in row.items()}
        return Batch(**values)

    def add(self, form: Any) -> None:
        self.buffer.add(form)

    def change(self) -> None:
        change(self.model)

    def save(self, place: Path) -> None:
        self.buffer.save_hdf5(str(place / "replay.hdf5"))
        torch.save(self.model.state_dict(), place / "model.pth")

    def load(self, place: Path) -> None:
        self.buffer = ReplayBuffer.load_hdf5(str(place / "replay.hdf5"))


class Pickled(Replay):
    def save(self, place: Path) -> None:
        with open(place / "replay.pkl", "wb") as file:
            pickle.dump(self.buffer, file)
        torch.save(self.model.state_dict(), place / "model.pth")

    def load(self, place: Path) -> None:
        with open(place / "replay.pkl", "rb") as file:
            self.buffer = pickle.load(file)
