"""Passing a command's output on, byte by byte as it comes, and noting that it came."""

from __future__ import annotations

import contextlib
import os
import select
import threading

_CHUNK_BYTES = 65536


class Relay:
    """A thread that copies one pipe to one descriptor until `finish`; owns the pipe's end.

    Where nobody reads on the other side any more, output is read and dropped. While the reader
    there is slow the command waits as it would without us: `is_blocked` then, and not hung.
    """

    def __init__(self, source: int, target: int) -> None:
        self._source = source
        self._target = target
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC)
        self.received_bytes = 0
        self.is_blocked = False
        self._thread = threading.Thread(target=self._run, name="pyengine-relay", daemon=True)
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Pass on what is in the pipe, then end, whoever else holds its other end open."""
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b".")
        self._thread.join(seconds)
        if not self._thread.is_alive():
            for fd in (self._source, self._wake_reader, self._wake_writer):
                os.close(fd)

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._source, select.POLLIN)
        poller.register(self._wake_reader, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._source in ready:
                data = os.read(self._source, _CHUNK_BYTES)
                if not data:
                    return
                self.received_bytes += len(data)
                self._pass_on(data)
            elif self._wake_reader in ready:
                return

    def _pass_on(self, data: bytes) -> None:
        view = memoryview(data)
        self.is_blocked = True
        with contextlib.suppress(OSError):  # the command must not wait for a reader that is gone
            while view:
                try:
                    view = view[os.write(self._target, view) :]
                except BlockingIOError:
                    select.select((), (self._target,), ())
        self.is_blocked = False
