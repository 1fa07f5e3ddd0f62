"""Signals as values: they arrive in a pipe, in order, and wake whoever polls it."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import Any


class SignalInbox:
    """Receives signals while its block runs; a context manager, of the main thread alone.

    Signals that were ignored when it began (nohup) stay so.
    """

    def __init__(self, *signals: int) -> None:
        self._signals = signals
        self._former: dict[int, Any] = {}
        self.fd = self._writer = -1

    def __enter__(self) -> SignalInbox:
        self.fd, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._former_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in self._signals:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._former[number] = signal.signal(number, _pass)
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        signal.set_wakeup_fd(self._former_fd)
        os.close(self.fd)
        os.close(self._writer)

    def take(self) -> list[int]:
        """Return the signals that came since the last time, oldest first. Does not block."""
        numbers = b""
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self.fd, 4096)
        return list(numbers)


def _pass(number: int, frame: FrameType | None) -> None:
    """Python writes the number into the pipe only of signals that have a handler."""
