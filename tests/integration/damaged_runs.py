"""Runs with three snapshots, and ways to damage what they hold."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import committed
from program import Training, tracking

STEPS = (6, 16, 19)


def _train(run_dir: Path) -> dict[int, dict[str, str]]:
    """Make a run with a snapshot at each of STEPS; return the digests."""
    digests = {}
    with tracking(run_dir, 0) as (engine, training):
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
