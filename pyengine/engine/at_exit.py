"""The end of the program is the end of an engine that nobody closed."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Protocol

from pyengine.errors import PyengineError
from pyengine.events import logger

EXIT_SECONDS = 30.0
"""How long the end of a program, or of a block that an exception leaves, waits for the writer."""


class Closable(Protocol):
    """An engine."""

    def close(self, final: int | None = None, *, timeout: float = ...) -> None:
        """Close it."""


def close_at_exit(engine: Closable) -> Callable[[], None]:
    """Have an engine closed at the end, not kept alive; return what `atexit` registered."""
    reference = weakref.ref(engine)

    def hook() -> None:
        found = reference()
        if found is None:
            return
        try:
            found.close(timeout=EXIT_SECONDS)
        except PyengineError as error:
            logger.warning("%s", error)

    return atexit.register(hook)
