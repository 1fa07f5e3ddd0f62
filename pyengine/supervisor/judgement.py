"""What a start's end means: its fault, whether it brought a snapshot, and what is done about it.

Keeps what was known of the runs at the death before, so that a snapshot is told from an older one.
Which start made it, its generation tells: what the writer of an earlier start has committed since
takes that start's death out of those in vain, and not the one that is judged.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import Any

from pyengine.events import logger
from pyengine.format import names
from pyengine.supervisor.faults import Death, classify, told
from pyengine.supervisor.journal import Journal
from pyengine.supervisor.restarts import Again, Enough, Restarts, Stall
from pyengine.supervisor.settings import Settings
from pyengine.supervisor.watch import Probe


@dataclass(frozen=True, slots=True)
class Hang:
    """What was known of a command when it was ended for doing nothing; `bound` is the option that
    said when, with its value."""

    ticks: int
    has_trainers: bool
    bound: str


@dataclass(frozen=True, slots=True)
class Over:
    """How one start ended; `hang`: by us, for it did nothing. `step` is the last that ticked."""

    death: Death
    hang: Hang | None
    seconds: float
    report: dict[str, Any] | None
    step: int | None
    runs: dict[str, int]


class Judge:
    """The deaths of one supervised command, and the newest snapshots of its runs."""

    def __init__(self, settings: Settings, journal: Journal) -> None:
        self._journal = journal
        self._restarts = Restarts(settings)
        self._newest: dict[str, tuple[int, int, str] | None] = {}
        self.faults: dict[str, int] = {}
        """How many deaths there were of each class."""

    @property
    def restarts(self) -> int:
        """How many restarts were granted."""
        return self._restarts.count

    @property
    def newest(self) -> str | None:
        """The newest snapshot that was seen, of any run."""
        newest = max((one for one in self._newest.values() if one is not None), default=None)
        return newest[2] if newest else None

    def look(self, found: Probe) -> None:
        """Take note of what the runs hold."""
        self._newest = {**self._newest, **found.newest}

    def unsaved(self, step: int | None, unknown: str | None) -> str | None:
        """Return in words what was not saved at a stop, where `step` ticked last; None: nothing.

        A step of None is one of a trainer that has not ticked, or not where it could be seen;
        `unknown` is why there may be snapshots that were not seen.
        """
        newest = self.newest
        saved = names.parse_snapshot_name(newest) if newest is not None else None
        if saved is not None and (step is None or saved.step >= step):
            return None
        if unknown is not None:
            return f"whether a snapshot of its last step was taken is not known: {unknown}"
        if newest is None:
            return "no snapshot was taken: the run has none"
        return f"no snapshot was taken of its last step, {step}: the newest is {newest}"

    def died(self, over: Over, found: Probe) -> Again | Enough:
        """Class a death, note it, and decide what is done about it."""
        fault = classify(
            over.death,
            over.report,
            is_hung=over.hang is not None,
            is_reachable=found.unreachable is None,
        )
        words = told(over.death, fault, over.report)
        has_new, has_late = self.has_new(over, found), self._has_late(over, found)
        unknown = None if has_new else found.unknown
        self.look(found)
        self.faults[fault] = self.faults.get(fault, 0) + 1
        self._journal.note(
            "died",
            fault=fault,
            exit_status=over.death.status,
            signal=None if over.death.signal is None else signal_name(over.death.signal),
            seconds=round(over.seconds, 3),
            step=over.step,
            error=over.report if over.death.signal is None else None,
            unreachable=found.unreachable,
            newest_snapshot=self.newest,
            has_new_snapshot=None if unknown else has_new,
            unknown=unknown,
        )
        stall = _stall(over.hang, has_new=has_new)
        if has_late:
            self._restarts.forgive()
        decision = self._restarts.died(
            time.monotonic(), words, has_new_snapshot=has_new, stall=stall, unknown=unknown
        )
        if isinstance(decision, Again):
            logger.warning(
                "the command died after %.1f s, %s; restart %d in %.1f s",
                over.seconds,
                words,
                self._restarts.count,
                decision.pause_seconds,
            )
            self._journal.note(
                "restarting",
                pause_seconds=round(decision.pause_seconds, 3),
                deaths_in_vain=decision.in_vain,
            )
        return decision

    def has_new(self, over: Over, found: Probe) -> bool:
        """Whether a start has left a snapshot that was not there at the death before.

        Of a start that told no generation of a run, whatever is new there counts.
        """
        return any(
            newest[0] >= over.runs.get(run, 0) for run, newest in self._new(over, found).items()
        )

    def _has_late(self, over: Over, found: Probe) -> bool:
        """Whether an earlier start's snapshot has come since the death before."""
        return any(
            newest[0] < over.runs.get(run, 0) for run, newest in self._new(over, found).items()
        )

    def _new(self, over: Over, found: Probe) -> dict[str, tuple[int, int, str]]:
        """Return the newest snapshots that were not there at the death before, by run; of a run
        that was not known then, what is newer than this start's claim."""
        new = {}
        for run, newest in found.newest.items():
            if newest is None:
                continue
            if run in self._newest:
                known = self._newest[run]
                is_new = known is None or newest > known
            else:
                is_new = run in over.runs and newest[0] >= over.runs[run]
            if is_new:
                new[run] = newest
        return new


def _stall(hang: Hang | None, *, has_new: bool) -> Stall | None:
    """Return the hang of a start that got nowhere. Of trainers that report to nobody, what they
    saved is all that is known."""
    if hang is None or not (hang.ticks < 2 if hang.has_trainers else not has_new):
        return None
    return Stall(hang.ticks, hang.bound)


def signal_name(number: int) -> str:
    """Return a signal's name, or its number where it has none."""
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)
