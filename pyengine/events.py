"""Words to people: the logger `pyengine`, on stderr unless the application configures it.

Nothing is ever printed to stdout outside the command line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger("pyengine")

Progress = Callable[[int, int], None]
"""Called with (done, in all), of bytes or of rows, now and then while a long call works."""


# Ignored: StreamHandler is generic in the stubs alone; at run time before Python 3.11 it is not.
class _StderrUnlessConfigured(logging.StreamHandler):  # type: ignore[type-arg]
    """Write to stderr only while no handler of the application would see the record."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and len(logger.handlers) == 1:
            super().emit(record)


def warn_once(seen: set[str], key: str, message: str, *args: object) -> None:
    """Log a warning the first time `key` is met in `seen`."""
    if key not in seen:
        seen.add(key)
        logger.warning(message, *args)


if not logger.handlers:
    _handler = _StderrUnlessConfigured()
    _handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger.addHandler(_handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
