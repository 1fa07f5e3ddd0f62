"""Threads for what blocks: hashing and disk. They read memory and files, write new files, and mark
blocks of mapped files as verified, nothing else.

Every change of state, every rename and every unlink of a published name happens in the main
thread, which is woken through an eventfd when a task has ended. So no step of a state machine ever
runs beside another one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

THREAD_COUNT = 9
"""Five segments and two files of a snapshot, each of which may be hashed by one more thread."""


class Workers:
    """A small pool of threads; owns them and the eventfd. A context manager."""

    def __init__(self, thread_count: int = THREAD_COUNT) -> None:
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pool = ThreadPoolExecutor(thread_count, thread_name_prefix="pyengine-io")

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Run `task` in a thread; `event` becomes readable when it has ended."""
        future = self._pool.submit(task)
        future.add_done_callback(self._wake)
        return future

    def clear(self) -> None:
        """Make `event` unreadable until the next task ends."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.event)

    def close(self) -> None:
        """Wait for the running tasks and end the threads."""
        self._pool.shutdown(cancel_futures=True)
        event, self.event = self.event, -1
        if event >= 0:
            os.close(event)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _wake(self, _: Future[T]) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self.event, 1)
