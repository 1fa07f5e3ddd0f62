"""Code that an exception from a signal handler must not cut in two.

Python runs signal handlers in the main thread, between any two bytecodes, and KeyboardInterrupt is
raised there. What starts a process or publishes a cut therefore runs in a thread of its own: it
always ends, nothing is left half done, and a handler meets no lock that its own thread holds. The
thread stays for the next call: making one is half of what a call costs (0.2 ms, 2026-11-30).
"""

from __future__ import annotations

import contextlib
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Generic, TypeVar

from pyengine.fs.forking import register_for_child

T = TypeVar("T")

_NO_THREAD = "new thread"
"""In what `Thread.start` raises: "can't start new thread", "can't create new thread at interpreter
shutdown" (Python 3.12 and later)."""


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
        """Call, unless that was revoked; `finish` has to follow."""
        if self.take():
            try:
                self._result.append(self._function())
            except BaseException as error:
                self.error = error

    def finish(self) -> None:
        """Let who waits go on."""
        self.done.set()

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self._result[0]


class _Threads:
    """Where tasks run: in one thread that waits for the next, or in new ones while it is busy.

    A handler may come in at any bytecode, with a task of its own: what it finds is either a thread
    that waits, with nothing before it, or none.
    """

    def __init__(self) -> None:
        self._after_fork_in_child()
        register_for_child(self)

    def _after_fork_in_child(self) -> None:
        self._tasks: queue.SimpleQueue[_Task[Any]] = queue.SimpleQueue()
        self._waiting: list[bool] = []

    def start(self, task: _Task[Any]) -> None:
        """Run the task elsewhere. RuntimeError where no thread can be started."""
        if sys.is_finalizing():
            raise RuntimeError(f"no {_NO_THREAD}: the interpreter ends")
        if not self._waiting or not self._tasks.empty():
            threading.Thread(target=self._serve, name="pyengine-whole", daemon=True).start()
        self._tasks.put(task)

    def _serve(self) -> None:
        self._waiting.append(True)
        is_enough = False
        while not is_enough:
            task = self._tasks.get()
            self._waiting.pop()
            task.run()
            is_enough = bool(self._waiting)
            if not is_enough:
                self._waiting.append(True)
            task.finish()
            del task  # with everything that it refers to


_threads = _Threads()


def run_whole(
    function: Callable[[], T],
    stop: threading.Event | None = None,
    *,
    even_if_interrupted: bool = False,
) -> T:
    """Call `function` where no signal handler can interrupt it; return or raise as it does.

    An exception that a handler raises meanwhile comes after the call has ended, and instead of its
    result: what the call made must be reachable otherwise. One that comes before the call has begun
    prevents it, except with `even_if_interrupted`, for what lets go. `function` must end by itself,
    soon; where it waits for something, `stop` is set by the first such exception. Where no thread
    can be started (the interpreter is shutting down, or there are too many) it is called here, with
    this thread's signals blocked.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    task = _Task(function)
    try:
        _threads.start(task)
        task.done.wait()
    except BaseException as error:
        if not task.take():
            if stop is not None:
                stop.set()
            _outwait(task.done)
            raise
        # It had not begun, and never will over there.
        if not (isinstance(error, RuntimeError) and _NO_THREAD in str(error)):
            if even_if_interrupted:
                with _signals_blocked():
                    function()
            raise
    else:
        return task.result()
    with _signals_blocked():
        return function()


@contextlib.contextmanager
def run_beside(
    steps: Callable[[], Iterator[T]], meanwhile: Callable[[], object] = lambda: None
) -> Iterator[T]:
    """Run a generator that yields once where no signal handler can interrupt it, its second part
    beside the block, which gets what was yielded, its first beside `meanwhile`.

    The end of the block waits for the generator's. What the generator raises comes at the beginning
    or at the end, and in place of an error of ours, of which it may be the cause. Whatever a
    handler raises comes when the generator has ended, with all that it does done. Where no thread
    can be started, both parts come before the block.
    """
    came: list[T] = []
    is_halfway = threading.Event()

    def call() -> None:
        try:
            for value in steps():
                came.append(value)
                is_halfway.set()
        finally:
            is_halfway.set()

    task = _Task(call)
    try:
        try:
            _threads.start(task)
        except RuntimeError as error:
            if _NO_THREAD not in str(error):
                raise
            with _signals_blocked():
                task.run()
            task.finish()
        meanwhile()
        is_halfway.wait()
        if not came:
            task.done.wait()
            task.result()
        yield came[0]
        task.done.wait()
    except BaseException as error:
        if not task.take():  # else it has not begun, and never will
            _outwait(task.done)
        if isinstance(error, Exception) and task.error not in (None, error):
            raise task.error from error
        raise
    task.result()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _outwait(done: threading.Event) -> None:
    """Wait for the end of a call whatever handlers raise meanwhile: one exception is on its way."""
    while not done.is_set():
        with contextlib.suppress(BaseException):
            done.wait()


def is_in_signal_handler() -> bool:
    """Return whether a Python signal handler is running in this thread, further up the stack."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    handlers.discard(None)
    handlers.discard(_code_of(signal.default_int_handler))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in handlers:
            return True
        frame = frame.f_back
    return False


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a handler that is a function, method, partial or callable object."""
    while hasattr(handler, "func"):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    if not hasattr(handler, "__code__"):
        handler = vars(type(handler)).get("__call__")
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
