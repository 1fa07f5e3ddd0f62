"""A run of 1.4 GB and cold resumes of it, for the figures of time and of memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.disk import regular_files
from benchmarks.replay_run import ReplayShape, build_run

BATCH = 256
SHAPE = ReplayShape(25_000, 28_224)
QUICK_SHAPE = ReplayShape(2_500, 28_224)


def prepare(directory: Path, *, quick: bool) -> ReplayShape:
    """Build the run; return the shape of its replay."""
    shape = QUICK_SHAPE if quick else SHAPE
    build_run(directory, shape)
    return shape


def resume(
    directory: Path, shape: ReplayShape, *, watch_seconds: float = 0.0, is_cold: bool = True
) -> dict[str, Any]:
    """Resume in a new process, with a cold page cache unless told otherwise; return what it
    measured.

    With `watch_seconds` it goes on sampling until all is verified and a moment longer, at most for
    so long, and tells when each batch ended.
    """
    numbers = map(str, (shape.rows, shape.obs_bytes, BATCH, watch_seconds, int(is_cold)))
    command = [sys.executable, "-m", "benchmarks.cold_child", str(directory), *numbers]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    if not result["correct"] or result["rows"] != shape.rows:
        raise RuntimeError(f"the resumed replay is not the one that was saved: {result}")
    return result


def own_files(directory: Path) -> int:
    """Return the bytes of the newest snapshot's files that are no segments: all read at once."""
    snapshots = sorted((directory / "snapshots").iterdir())
    files = regular_files(snapshots[-1])
    return sum(path.stat().st_size for path in files if path.suffix != ".seg")
