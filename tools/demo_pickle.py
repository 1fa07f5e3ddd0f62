"""Arm C of the demo: the same state, saved and loaded as libraries do today.

A buffer of plain arrays, one file by torch.save for the learner and one pickle of the arrays for
the replay, all of it again at every save, inside the training loop. No fsync and no checksum, as in
the libraries; kinder than most of them in one point: a new file replaces the old one by rename, so
a kill in mid-save leaves the previous pair.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pyengine


class PlainRing:
    """The replay buffer of a library: one array per field, written in place."""

    def __init__(self, fields: dict[str, tuple[tuple[int, ...], str]], *, capacity: int, seed: int):
        self._columns = {
            name: np.zeros((capacity, *shape), dtype) for name, (shape, dtype) in fields.items()
        }
        self._capacity = capacity
        self._rng = np.random.default_rng(seed)
        self.total_count = 0

    def __len__(self) -> int:
        return min(self.total_count, self._capacity)

    def add(self, **row: Any) -> None:
        position = self.total_count % self._capacity
        for name, column in self._columns.items():
            column[position] = row[name]
        self.total_count += 1

    def sample(self, count: int, device: str) -> dict[str, torch.Tensor]:
        rows = self._rng.integers(len(self), size=count)
        return {
            name: torch.from_numpy(column[rows]).to(device)
            for name, column in self._columns.items()
        }

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@dataclass(frozen=True, slots=True)
class PickleReport:
    """Answers like a RestoreReport as far as a training loop asks."""

    next_step: int

    def __bool__(self) -> bool:
        return self.next_step > 0


class PickledCheckpoints:
    """Stands where a SnapshotEngine stands in the loop: track, restore, tick."""

    def __init__(self, directory: Path, *, every_steps: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._learner_file = directory / "learner.pt"
        self._replay_file = directory / "replay.pkl"
        self._every_steps = every_steps
        self._tracked: dict[str, Any] = {}

    def track(self, **objects: Any) -> None:
        self._tracked.update(objects)

    def restore(self) -> PickleReport:
        if not self._learner_file.exists():
            return PickleReport(next_step=0)
        saved = torch.load(self._learner_file, weights_only=False)
        with self._replay_file.open("rb") as file:
            self._tracked["replay"].__setstate__(pickle.load(file))
        for name, obj in self._tracked.items():
            _set_state(obj, saved.get(name))
        torch.set_rng_state(saved["torch_rng"])
        return PickleReport(next_step=saved["step"] + 1)

    def tick(self, step: int) -> bool:
        if step == 0 or step % self._every_steps:
            return False
        state = {name: _get_state(obj) for name, obj in self._tracked.items()}
        state |= {"step": step, "torch_rng": torch.get_rng_state()}
        torch.save(state, _temporary(self._learner_file))
        with _temporary(self._replay_file).open("wb") as file:
            pickle.dump(self._tracked["replay"].__getstate__(), file, protocol=4)
        for path in (self._replay_file, self._learner_file):
            os.replace(_temporary(path), path)
        return True


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _get_state(obj: Any) -> Any:
    if isinstance(obj, PlainRing):
        return None
    if isinstance(obj, pyengine.EnvironmentState):
        return obj.get()
    if isinstance(obj, np.random.Generator):
        return obj.bit_generator.state
    return obj.state_dict() if hasattr(obj, "state_dict") else dict(obj)


def _set_state(obj: Any, state: Any) -> None:
    if isinstance(obj, PlainRing):
        return
    if isinstance(obj, pyengine.EnvironmentState):
        obj.set(state)
    elif isinstance(obj, np.random.Generator):
        obj.bit_generator.state = state
    elif hasattr(obj, "load_state_dict"):
        obj.load_state_dict(state)
    else:
        obj.update(state)


def plain_fields(schema: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return name -> (shape, dtype) of a pyengine schema."""
    return {name: (field.shape, field.dtype) for name, field in schema.items()}
