"""Calls that a lost disk may never answer, with a bound: the supervisor must outlive the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """Call `function` in a thread; return or raise as it does, TimeoutError after `seconds`.

    A call that is given up goes on by itself; its thread does not keep the process alive.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, name="pyengine-bounded", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return results[0]
