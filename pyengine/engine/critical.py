"""Code that an exception from a signal handler must not cut in two.

Python runs signal handlers in the main thread, between any two bytecodes, and KeyboardInterrupt is
raised there. What starts a process or publishes a cut therefore runs in a thread of its own: it
always ends, nothing is left half done, and a handler meets no lock that its own thread holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Task(Generic[T]):
    """One call in a thread; `revoked` and `started` exclude each other."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._token = threading.Lock()
        self._result: list[T] = []
        self.error: BaseException | None = None
        self.done = threading.Event()

    def take(self) -> bool:
        """Win the right to decide whether the call happens; only one side ever does."""
        return self._token.acquire(blocking=False)

    def run(self) -> None:
        if self.take():
            try:
                self._result.append(self._function())
            except BaseException as error:
                self.error = error
            self.done.set()

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self._result[0]


def run_whole(function: Callable[[], T]) -> T:
    """Call `function` where no signal handler can interrupt it; return or raise as it does.

    An exception that a handler raises meanwhile comes after the call has ended, and instead of its
    result. `function` must end by itself, soon: it cannot be interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    task = _Task(function)
    interrupt: BaseException | None = None
    try:
        threading.Thread(target=task.run, name="pyengine-whole", daemon=True).start()
    except BaseException as error:
        if task.take():
            raise
        interrupt = error
    while not task.done.is_set():
        try:
            task.done.wait()
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return task.result()
