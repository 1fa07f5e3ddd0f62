"""The supervisor's log for programs: one JSON object a line, appended, never rewritten.

Every object has `time` (ISO 8601, UTC, milliseconds), `event`, `start` (how many times the command
was started so far) and `supervisor` (pid). By default it is `supervisor.jsonl` in the run, which is
known only once a trainer has said so: until then events wait. A log that cannot be written is
worth a warning, never the run.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from typing import Any

from pyengine.events import logger
from pyengine.fs import door
from pyengine.supervisor.bounded import call_within

_WRITE_SECONDS = 5.0
_WAITING_MAX = 1000


class Journal:
    """Appends events to a file; each is on disk when `note` returns, or is told of and kept."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.start = 0
        self._waiting: list[bytes] = []
        self._is_told = False

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
        del self._waiting[:-_WAITING_MAX]
        self._flush()

    def _flush(self) -> None:
        path, lines = self.path, self._waiting
        if path is None or not lines:
            return
        try:
            call_within(_WRITE_SECONDS, lambda: _append(path, b"".join(lines)))
        except OSError as error:
            if not self._is_told:
                logger.warning("the supervisor's log %s cannot be written: %s", path, error)
            self._is_told = True
            return
        self._waiting = []
        self._is_told = False


def _append(path: str, data: bytes) -> None:
    fd = door.active.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK)
    try:
        door.active.write(fd, data)
        door.active.fsync(fd)
    finally:
        door.active.close(fd)
