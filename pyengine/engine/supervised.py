"""What an engine does under `pyengine run`, and nothing without it.

A tick touches one word of shared memory, by which the supervisor knows that training goes on. An
exception that ends the process is put on record there, so that the supervisor knows a full disk
from a bug. One lifeline for the process, whatever number of engines it makes.

A supervisor that was killed can neither pass output on nor start anything again, and whoever starts
the next one would find the run in use. So the next tick sends this process the SIGTERM that the
supervisor would have sent: the run ends in one snapshot, or as the script says.
"""

from __future__ import annotations

import os
import signal
import sys
from types import TracebackType

from pyengine.events import logger
from pyengine.fs.forking import register_for_child
from pyengine.shm.lifeline import Lifeline


class _Process:
    """The lifeline of this process, once an engine has asked for it; a forked child asks anew."""

    def __init__(self) -> None:
        self._lifeline: Lifeline | None = None
        self._is_asked = False
        self.is_left = False

    def lifeline(self) -> Lifeline | None:
        if not self._is_asked:
            self._is_asked = True
            self._lifeline = Lifeline.attach()
            if self._lifeline is not None:
                register_for_child(self)
                _report_unhandled(self._lifeline)
        return self._lifeline

    def _after_fork_in_child(self) -> None:
        self._lifeline = None
        self._is_asked = self.is_left = False


_process = _Process()


def lifeline_of_process() -> Lifeline | None:
    """Return this process's lifeline; None where no supervisor watches it."""
    return _process.lifeline()


def tell_supervisor(lifeline: Lifeline, step: int) -> None:
    """Say that step `step` ticks. Where the supervisor is gone: SIGTERM to this process, once."""
    lifeline.tick(step)
    if not _process.is_left and lifeline.is_alone:
        _process.is_left = True
        logger.error("the supervisor (`pyengine run`) has ended: so does this run, by SIGTERM")
        os.kill(os.getpid(), signal.SIGTERM)


def _report_unhandled(lifeline: Lifeline) -> None:
    former = sys.excepthook

    def report(
        kind: type[BaseException], value: BaseException, traceback: TracebackType | None
    ) -> None:
        lifeline.report(value)
        former(kind, value, traceback)

    sys.excepthook = report
