"""The supervisor's log for programs: one JSON object a line, appended, never rewritten.

Every object has `time` (ISO 8601, UTC, milliseconds), `event`, `start` (how many times the command
was started so far) and `supervisor` (pid). By default it is `supervisor.jsonl` in the run, which is
known only once a trainer has said so: until then events wait. A log that cannot be written is
worth a warning, never the run.

A full disk, or a death, may tear a line. What comes next begins on a line of its own, and an event
whose line was torn comes again, whole: a line that is no JSON is half of an event, and only that.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
from collections import deque
from datetime import datetime, timezone
from typing import Any

from pyengine.events import logger
from pyengine.fs import door
from pyengine.supervisor.bounded import call_within

_WRITE_SECONDS = 5.0
_WAITING_MAX = 1000
_LINE_MAX_BYTES = 1 << 16


class Journal:
    """Appends events to a file; each is on disk when `note` returns, or is told of and kept."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.start = 0
        self._waiting: deque[bytes] = deque(maxlen=_WAITING_MAX)
        self._is_told = False
        # Of a write that was given up and goes on: nobody else writes meanwhile.
        self._lock = threading.Lock()

    def place(self, path: str) -> None:
        """Say where the log is, if nothing said so before."""
        if self.path is None:
            self.path = path
            self._flush()

    def note(self, event: str, **fields: Any) -> None:
        """Append one event. Blocks up to 5 s where the disk does not answer."""
        record = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "event": event,
            "start": self.start,
            "supervisor": os.getpid(),
            **fields,
        }
        self._waiting.append(json.dumps(record).encode() + b"\n")
        self._flush()

    def _flush(self) -> None:
        path = self.path
        if path is None or not self._waiting:
            return
        try:
            call_within(_WRITE_SECONDS, lambda: self._write(path))
        except OSError as error:
            if not self._is_told:
                logger.warning("the supervisor's log %s cannot be written: %s", path, error)
            self._is_told = True
            return
        self._is_told = False

    def _write(self, path: str) -> None:
        if not self._lock.acquire(timeout=_WRITE_SECONDS):
            raise TimeoutError("an earlier write is not over")
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
            fd = door.active.open(path, flags)
            try:
                self._append(fd, _last_bytes(path, fd, _LINE_MAX_BYTES))
            finally:
                door.active.close(fd)
        finally:
            self._lock.release()

    def _append(self, fd: int, tail: bytes) -> None:
        lines = list(self._waiting)
        written: list[bytes] = []
        try:
            if lines and tail and not tail.endswith(b"\n"):
                door.active.write(fd, b"\n")
                if tail.split(b"\n")[-1] + b"\n" == lines[0]:
                    written.append(lines.pop(0))  # its end alone was missing
            for line in lines:
                door.active.write(fd, line)
                written.append(line)
        finally:
            if written:
                door.active.fsync(fd)
            for line in written:
                if self._waiting and self._waiting[0] is line:  # else `note` has dropped it
                    self._waiting.popleft()


def read_events(path: str) -> list[dict[str, Any]]:
    """Return the events of a log, oldest first, without the halves of torn lines. OSError."""
    events = []
    with open(path, "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
    return events


def _last_bytes(path: str, fd: int, count: int) -> bytes:
    """Return the end of a regular file that is open for writing; of a pipe or device, nothing."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return b""
    reader = door.active.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        tail = bytearray(min(count, status.st_size))
        got = door.active.pread_into(reader, [tail], status.st_size - len(tail))
        return bytes(tail[:got])
    finally:
        door.active.close(reader)
