"""Runs with three snapshots, and ways to damage what they hold.

`three` has what a small training needs; `full` a file of every kind that a snapshot can have, and
of most kinds two that are equally long and differ.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import committed
from program import LANES, Training, new_ring, tracking
from torch import nn

import pyengine

STEPS = (6, 16, 19)


class Holder:
    """Gives its state by methods of its own: a number and an array."""

    def __init__(self, start: float) -> None:
        self.state: dict[str, Any] = {"updates": start, "table": np.full(3, start)}

    def get_state(self) -> dict[str, Any]:
        return self.state

    def set_state(self, state: dict[str, Any]) -> None:
        self.state = state

    def step(self) -> None:
        self.state["updates"] += 1.0
        self.state["table"] += 1.0


class Curriculum:
    """Has no methods for its state."""

    def __init__(self, level: float) -> None:
        self.level = level


class FullTraining(Training):
    """The small training, with a second one of each kind of object, and of every other kind one."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.target = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        self.companion = torch.optim.AdamW(self.target.parameters(), lr=1e-2)
        self.other_scheduler = torch.optim.lr_scheduler.ExponentialLR(self.companion, 0.98)
        self.other_ring = new_ring(seed + 1)
        self.examiner = np.random.default_rng(seed + 1)
        self.vector = np.zeros(3)
        self.teachers = [Holder(1.0), Holder(2.0)]
        self.worlds = [Holder(3.0), Holder(4.0)]
        self.curricula = [Curriculum(5.0), Curriculum(6.0)]

    def track(self, engine: pyengine.SnapshotEngine) -> None:
        super().track(engine)
        engine.track(
            target=self.target,
            companion=self.companion,  # a name as long as the optimizer's, for equal files
            other_scheduler=self.other_scheduler,
            other=self.other_ring,
            examiner=self.examiner,  # likewise
            vector=self.vector,
            **{f"teacher_{i}": one for i, one in enumerate(self.teachers)},
            **{
                f"world_{i}": pyengine.EnvironmentState(get=one.get_state, set=one.set_state)
                for i, one in enumerate(self.worlds)
            },
            **{f"curriculum_{i}": pyengine.Pickled(one) for i, one in enumerate(self.curricula)},
        )

    def step(self, step: int) -> None:
        super().step(step)
        self.companion.zero_grad()
        self.target(torch.ones(1, 4)).square().sum().backward()
        self.companion.step()
        self.other_scheduler.step()
        obs = self.examiner.standard_normal((LANES, 4)).astype(np.float32)
        number = np.full(LANES, step, np.int64)
        self.other_ring.add(obs=obs, number=number, check=number * 3 + 1)
        self.vector += 1.0
        for one in [*self.teachers, *self.worlds]:
            one.step()
        for curriculum in self.curricula:
            curriculum.level += 0.5

    def rings(self) -> list[pyengine.ReplayBuffer]:
        return [self.ring, self.other_ring]

    def digest(self) -> dict[str, str]:
        """Return the digest of the small training and everything else as text; reads every row."""
        rows = self.other_ring[self.other_ring.refs()]
        rest = [
            {name: value.tolist() for name, value in self.target.state_dict().items()},
            str(self.companion.state_dict()),
            {name: column.tobytes() for name, column in rows.items()},
            str(self.examiner.bit_generator.state),
            self.vector.tolist(),
            [str(one.state) for one in [*self.teachers, *self.worlds]],
            [one.level for one in self.curricula],
        ]
        return {**super().digest(), **{f"rest {i}": str(value) for i, value in enumerate(rest)}}


@contextlib.contextmanager
def tracking_fully(
    run_dir: Path, seed: int = 5, **options: Any
) -> Iterator[tuple[pyengine.SnapshotEngine, FullTraining]]:
    """Give an engine and a new full training that it tracks, not yet restored."""
    training = FullTraining(seed)
    with pyengine.SnapshotEngine(run_dir, **options) as engine:
        training.track(engine)
        yield engine, training


def _train(run_dir: Path, tracked: Any = tracking) -> dict[int, dict[str, str]]:
    """Make a run with a snapshot at each of STEPS; return the digests."""
    digests = {}
    with tracked(run_dir, 0) as (engine, training):
        engine.restore()
        for step in range(STEPS[-1] + 1):
            training.step(step)
            if step in STEPS:
                engine.snapshot(step).wait(60)
                digests[step] = training.digest()
    return digests


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict[str, str]]]:
    """A run with three snapshots, made once for a module, and its digests by step."""
    run_dir = tmp_path_factory.mktemp("original") / "run"
    return run_dir, _train(run_dir)


@pytest.fixture
def three(original: tuple[Path, dict[int, dict[str, str]]], tmp_path: Path) -> Path:
    """A copy of it, hard links included, to be damaged."""
    run_dir = tmp_path / "run"
    subprocess.run(["cp", "-a", original[0], run_dir], check=True)
    return run_dir


@pytest.fixture(scope="module")
def full_original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with three full snapshots."""
    run_dir = tmp_path_factory.mktemp("original") / "run"
    _train(run_dir, tracking_fully)
    return run_dir


@pytest.fixture
def full(full_original: Path, tmp_path: Path) -> Path:
    """A copy of it, hard links included, to be damaged."""
    run_dir = tmp_path / "run"
    subprocess.run(["cp", "-a", full_original, run_dir], check=True)
    return run_dir


@pytest.fixture
def digests(original: tuple[Path, dict[int, dict[str, str]]]) -> dict[int, dict[str, str]]:
    """What the snapshots of `three` hold, by step."""
    return original[1]


def newest(run_dir: Path) -> Path:
    """Return the directory of the newest snapshot."""
    return run_dir / "snapshots" / committed(run_dir)[-1]


def files_of(snapshot: Path) -> list[Path]:
    """Return every file of a snapshot, sorted."""
    return sorted(path for path in snapshot.rglob("*") if path.is_file())


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Change one bit, in place: hard links see it."""
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def flip_places(path: Path) -> Iterator[int]:
    """Yield offsets to flip: both ends, the middle, and a row of a segment file."""
    size = path.stat().st_size
    yield from sorted({0, size // 2, size - 1})
    if path.suffix == ".seg":
        yield 8  # the format version
        yield 4096 + 3  # the first row of the first field
        yield size - 4096  # the first hash of the block table


def digest_of(training: Training) -> dict[str, str]:
    """Return the digest; reads every row."""
    return training.digest()


def entries(run_dir: Path, name: str) -> list[str]:
    """Return what a directory of the run holds, sorted."""
    return sorted(os.listdir(run_dir / name))
