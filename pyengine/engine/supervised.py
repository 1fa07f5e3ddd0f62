"""What an engine does under `pyengine run`, and nothing without it.

A tick touches one word of shared memory, by which the supervisor knows that training goes on. An
exception that ends the process is put on record there, so that the supervisor knows a full disk
from a bug. One lifeline for the process, whatever number of engines it makes.
"""

from __future__ import annotations

import sys
from types import TracebackType

from pyengine.fs.forking import register_for_child
from pyengine.shm.lifeline import Lifeline


class _Process:
    """The lifeline of this process, once an engine has asked for it; a forked child asks anew."""

    def __init__(self) -> None:
        self._lifeline: Lifeline | None = None
        self._is_asked = False

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
        self._is_asked = False


_process = _Process()


def lifeline_of_process() -> Lifeline | None:
    """Return this process's lifeline; None where no supervisor watches it."""
    return _process.lifeline()


def _report_unhandled(lifeline: Lifeline) -> None:
    former = sys.excepthook

    def report(
        kind: type[BaseException], value: BaseException, traceback: TracebackType | None
    ) -> None:
        lifeline.report(value)
        former(kind, value, traceback)

    sys.excepthook = report
