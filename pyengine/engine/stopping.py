"""Ending a run on request: the first signal is a wish for the next tick, a second one is an order.

The handler only notes the signal. The next tick takes a snapshot whatever is due, waits until it is
durable, at most until the grace that began with the signal is over, and raises StopRequested. What
comes later goes to the handler that was there before, as if there were no engine: by that a person
gets out of a loop that does not tick. What comes within a second of the first is the same request:
job systems, shells and supervisors each send one to every process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator
from types import FrameType
from typing import Any

from pyengine import config
from pyengine.engine.pending import PendingSnapshot
from pyengine.errors import ConfigError, PyengineError, StopRequested
from pyengine.events import logger

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """The wish of one engine to be told of signals; installs nothing by itself.

    Handlers belong to the process: `install` works in the main thread alone. In a forked child,
    which inherits them, each signal goes to the former handler at once.
    """

    def __init__(self, signals: Collection[int] = STOP_SIGNALS, grace: float | None = None) -> None:
        self._signals = tuple(signals)
        self._grace = config.STOP_GRACE_SECONDS if grace is None else grace
        self._former: dict[int, Any] = {}
        self._pid = os.getpid()
        self._came = 0.0
        self.number: int | None = None
        """The signal that came, or None."""

    @property
    def remaining_seconds(self) -> float:
        """How much of the grace is left, once a signal came."""
        return max(0.0, self._came + self._grace - time.monotonic())

    @property
    def is_installed(self) -> bool:
        """Whether handlers of ours are in place."""
        return bool(self._former)

    def install(self) -> None:
        """Put the handlers in place. ConfigError outside of the main thread."""
        try:
            for number in self._signals:
                self._former[number] = signal.getsignal(number)
                signal.signal(number, self._note)
        except (ValueError, OSError, TypeError) as error:
            self._former.pop(number, None)
            self.uninstall()
            raise ConfigError(
                f"signal {number} cannot be handled here ({error}): call it in the main thread, "
                "with signals that can be handled, as (signal.SIGTERM, signal.SIGINT)"
            ) from error

    def install_where_default(self) -> None:
        """Put handlers in place of default ones; what the script handles itself stays its own."""
        if threading.current_thread() is threading.main_thread():
            defaults = (signal.SIG_DFL, signal.default_int_handler)
            free = [number for number in self._signals if signal.getsignal(number) in defaults]
            self._signals = tuple(free)
            self.install()

    def uninstall(self) -> None:
        """Put the former handlers back, except where somebody has replaced ours. Idempotent."""
        if threading.current_thread() is not threading.main_thread():
            return
        while self._former:
            number, former = self._former.popitem()
            if signal.getsignal(number) == self._note:
                signal.signal(number, former if former is not None else signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            now = time.monotonic()
            if self.number is None:
                self._came, self.number = now, number
                return
            if now - self._came < config.SAME_REQUEST_SECONDS:
                return
        former = self._former.get(number, signal.SIG_DFL)
        if callable(former):
            former(number, frame)
        elif former == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def stopped(stop: StopSignals, step: int, taken: PendingSnapshot | PyengineError) -> StopRequested:
    """Wait for the last snapshot as long as the grace lasts; return what the tick is to raise.

    `taken` is the snapshot, or the reason why there is none, which becomes the cause.
    """
    number = stop.number or 0
    end = StopRequested(signal=number, step=step)
    try:
        if isinstance(taken, PyengineError):
            raise taken
        end.info = taken.wait(stop.remaining_seconds)
    except (PyengineError, TimeoutError, OSError) as error:
        end.__cause__ = error
        logger.warning("signal %d: the last snapshot, of step %d: %s", number, step, error)
    else:
        logger.info("signal %d: the run ends with %s, which is durable", number, end.info.name)
    return end


@contextlib.contextmanager
def installed(stop: StopSignals, instead_of: StopSignals) -> Iterator[None]:
    """Handle signals by `stop` while the block runs, and by what did so before afterwards."""
    comes_back = instead_of.is_installed
    instead_of.uninstall()
    try:
        stop.install()
        yield
    finally:
        stop.uninstall()
        if comes_back:
            instead_of.install()
