"""What an agent did, written where no fault reaches it: one record a step, one line an event.

A record is one write, so that a killed process leaves whole ones; `at` is CLOCK_MONOTONIC, which
all processes share. Steps that were made again stand there twice: the later record counts.
Events are JSON lines: started, restored, durable (`wait()` of that snapshot has returned), ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pyengine

STEPS = "steps.bin"
EVENTS = "events.jsonl"
RECORD = np.dtype(
    [("at", "f8"), ("rows", "i8"), ("step", "i4"), ("start", "i4"), ("result", "f4"),
     ("action", "i4")]
)  # fmt: skip
"""`rows`: rows ever added to the ring; `result`: the return of an episode that ended, else NaN."""


class Diary:
    """The writing side, in the agent's process. A context manager."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._steps = os.open(directory / STEPS, flags, 0o600)
        self._events = os.open(directory / EVENTS, flags, 0o600)
        self._start = sum(event["event"] == "started" for event in events_of(directory)) + 1
        self._open: list[Any] = []
        self._row = np.zeros(1, RECORD)
        self._row["start"] = self._start
        self._note("started", pid=os.getpid())

    def __enter__(self) -> Diary:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._steps)
        os.close(self._events)

    def restored(self, report: pyengine.RestoreReport, rows: int) -> None:
        """Note where the agent goes on, and with how many rows ever added."""
        self._note(
            "restored",
            snapshot=report.snapshot.name if report.snapshot else None,
            next_step=report.next_step,
            rows=rows,
            seconds=report.seconds,
            notes=list(report.notes),
        )

    def step(self, step: int, action: int, rows: int, result: float | None) -> None:
        """Note one step; `rows` as they are after it."""
        values = (time.monotonic(), rows, step, self._start, result, action)
        self._row[0] = tuple(np.nan if value is None else value for value in values)
        os.write(self._steps, self._row.tobytes())

    def taken(self, pending: Any | None) -> None:
        """Keep an eye on a snapshot, and note those whose `wait()` returns by now."""
        if pending is not None:
            self._open.append(pending)
        for known in [known for known in self._open if known.is_done]:
            self._open.remove(known)
            # Its error is raised by the next tick; here only success is of interest.
            with contextlib.suppress(pyengine.errors.PyengineError):
                info = known.wait(0)
                self._note("durable", snapshot=info.name, step=info.global_step)

    def ended(self) -> None:
        """Note that training is over."""
        self._note("ended")

    def _note(self, event: str, **fields: Any) -> None:
        line = {"event": event, "at": time.monotonic(), "start": self._start, **fields}
        os.write(self._events, json.dumps(line).encode() + b"\n")


def events_of(directory: Path) -> list[dict[str, Any]]:
    """Return the events so far; a line that is just being written is left out."""
    try:
        text = (directory / EVENTS).read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1] if line]


def steps_of(directory: Path) -> NDArray[np.void]:
    """Return the records so far, in the order of writing."""
    try:
        data = (directory / STEPS).read_bytes()
    except FileNotFoundError:
        data = b""
    return np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)


def last_step_of(directory: Path) -> NDArray[np.void] | None:
    """Return the newest record without reading the others."""
    try:
        with open(directory / STEPS, "rb") as file:
            count = os.fstat(file.fileno()).st_size // RECORD.itemsize
            if count == 0:
                return None
            file.seek((count - 1) * RECORD.itemsize)
            found: NDArray[np.void] = np.frombuffer(file.read(RECORD.itemsize), RECORD)[0]
            return found
    except FileNotFoundError:
        return None


def history_of(records: NDArray[np.void]) -> NDArray[np.void]:
    """Return what counts in the end: of each step the record that was written last, by step."""
    _, last = np.unique(records["step"][::-1], return_index=True)
    return records[len(records) - 1 - last]
