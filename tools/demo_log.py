"""What one arm of the demo leaves behind for the parent: a record per step, a line per event,
digests and counts.

Both survive a SIGKILL of their author: each record is one unbuffered write. Times are
CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEP = np.dtype(
    [
        ("step", "<i8"),
        ("end_ns", "<i8"),
        ("step_ns", "<i8"),  # the whole loop body, the tick included
        ("tick_ns", "<i8"),  # stall: time inside tick()
        ("add_ns", "<i8"),  # time inside add(), waits for a free slot included
        ("loss", "<f8"),  # NaN where the step made no update
        ("action", "i1"),
        ("reward", "i1"),
        ("saving", "?"),  # a save was in flight when the step began
        ("started", "?"),  # the step's tick began a save
    ]
)


class ArmLog:
    """Append records of one life of an arm to `directory`; lives are numbered from 1."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        life = len(list(directory.glob("steps-*.bin"))) + 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._steps = os.open(directory / f"steps-{life}.bin", flags, 0o644)
        self._events = os.open(events_file(directory, life), flags, 0o644)
        self._end_file = end_file(directory)

    def step(self, *values: Any) -> None:
        os.write(self._steps, np.array([values], STEP).tobytes())

    def event(self, name: str, **data: Any) -> None:
        record = {"event": name, "at_ns": time.monotonic_ns(), **data}
        os.write(self._events, (json.dumps(record) + "\n").encode())

    def ends_at(self) -> int | None:
        """Return the step before which the parent wants this arm to end, if sooner than planned."""
        try:
            return int(self._end_file.read_text())
        except FileNotFoundError:
            return None


def events_file(directory: Path, life: int) -> Path:
    """Return where the events of a life are."""
    return directory / f"events-{life}.jsonl"


def end_file(directory: Path) -> Path:
    """Return where the parent says that an arm ends sooner than planned."""
    return directory / "ends-at.txt"


def written_bytes(process: str = "self") -> int:
    """Return what a process and its children (the writer) have handed to write() so far."""
    children = Path(f"/proc/{process}/task").glob("*/children")
    pids = [process, *(pid for path in children for pid in path.read_text().split())]
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/io").read_text().split()
        total += int(fields[fields.index("wchar:") + 1])
    return total


def sha256(arrays: Iterable[NDArray[Any]]) -> str:
    """Return the digest of arrays one after another."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def read_steps(path: Path) -> NDArray[np.void]:
    """Return the whole records of one life; a torn last one is left out."""
    data = path.read_bytes()
    return np.frombuffer(data[: len(data) // STEP.itemsize * STEP.itemsize], STEP)


def read_events(path: Path) -> dict[str, dict[str, Any]]:
    """Return the events of one life by name."""
    lines = path.read_text().splitlines()
    return {record["event"]: record for record in map(json.loads, lines)}


def count_steps(directory: Path, life: int) -> int:
    """Return how many steps a life has logged so far, without reading them."""
    try:
        return (directory / f"steps-{life}.bin").stat().st_size // STEP.itemsize
    except FileNotFoundError:
        return 0
