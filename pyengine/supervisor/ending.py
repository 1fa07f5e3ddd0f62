"""How a command is made to end: asked first, then told, then killed.

    ask    the trainers alone get the signal (the whole group where no trainer is known): their
           environments' workers must live until the last snapshot is taken
    tell   the whole group gets SIGTERM
    kill   the whole group gets SIGKILL; the writers have groups of their own and drain

A first request asks, the next one tells and leaves 5 s, one more kills, as does the grace's end. A
second request, of whoever doubts that the first arrived, must not cost the last snapshot though:
where a trainer ticks it only says how long that is waited for, and the third one tells. A command
that hangs is told at once.
"""

from __future__ import annotations

import signal
import time
from enum import IntEnum

from pyengine.events import logger
from pyengine.supervisor.command import Command
from pyengine.supervisor.journal import Journal
from pyengine.supervisor.settings import Settings
from pyengine.supervisor.watch import Watch

_SECOND_SECONDS = 5.0


class Stage(IntEnum):
    """How far it has come."""

    NONE = 0
    ASKED = 1
    TOLD = 2
    KILLED = 3


class Ending:
    """The end of one start of the command, once somebody wants it."""

    def __init__(
        self, command: Command, watch: Watch, journal: Journal, settings: Settings
    ) -> None:
        self._command = command
        self._watch = watch
        self._journal = journal
        self._grace = settings.grace
        self._stuck = settings.stuck
        self._deadline: float | None = None
        self._is_repeated = False
        self.stage = Stage.NONE

    @property
    def is_stuck(self) -> bool:
        """Whether not even SIGKILL has ended the command in the time that it gets."""
        return self.stage == Stage.KILLED and self._is_over()

    @property
    def remaining_seconds(self) -> float | None:
        """How long until something is to be done; None: nothing is."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def ask(self, number: int) -> None:
        """A signal asks for the end: ask; where it was asked before, go on as the top says."""
        if self.stage == Stage.NONE:
            self.stage = Stage.ASKED
            self._deadline = time.monotonic() + self._grace
            pids = self._watch.send(number)
            if not pids:
                self._command.signal_group(number)
            self._note(number, "the trainers" if pids else "the group", "asked to end")
        elif self.stage == Stage.ASKED and not self._is_repeated and self._watch.ticks() > 0:
            self._is_repeated = True
            self._say_how_long(number)
        elif self.stage == Stage.ASKED:
            self.tell("asked to end again", min(_SECOND_SECONDS, self._grace))
        else:
            self.kill("asked to end once more")

    def _say_how_long(self, number: int) -> None:
        name, seconds = signal.Signals(number).name, self.remaining_seconds or 0.0
        logger.warning(
            "%s again: the next tick saves and ends the run, within %.1f s; a third signal ends it "
            "now, without a snapshot",
            name,
            seconds,
        )
        self._journal.note("awaiting", signal=name, seconds=round(seconds, 3))

    def tell(self, why: str, seconds: float | None = None) -> None:
        """SIGTERM to the group; SIGKILL follows."""
        self.stage = max(self.stage, Stage.TOLD)
        self._deadline = time.monotonic() + (self._grace if seconds is None else seconds)
        self._command.signal_group(signal.SIGTERM)
        self._note(signal.SIGTERM, "the group", why)

    def kill(self, why: str) -> None:
        """SIGKILL to the group."""
        self.stage = Stage.KILLED
        self._deadline = time.monotonic() + self._stuck
        self._command.signal_group(signal.SIGKILL)
        self._note(signal.SIGKILL, "the group", why)

    def go_on(self) -> None:
        """Kill once the grace is over."""
        if self.stage in (Stage.ASKED, Stage.TOLD) and self._is_over():
            self.kill("the grace is over")

    def _is_over(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _note(self, number: int, to: str, why: str) -> None:
        self._journal.note("signalled", signal=signal.Signals(number).name, to=to, why=why)
