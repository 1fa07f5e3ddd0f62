"""The supervisor's life: start, watch, end, judge, pause, and start again.

One thread decides; it sleeps in one poll, for signals, for the command's end and for the time at
which something is due. What may hang with a disk (the log, a look at the run) happens in threads
that are given up after seconds. A stop that was asked for ends everything with the command's own
status. At the end the writers of dead trainers are waited for: where the supervisor is PID 1, they
would die with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyengine import config
from pyengine.events import logger
from pyengine.format import names
from pyengine.supervisor.command import (
    Command,
    become_subreaper,
    draining_writers,
    reap_orphans,
)
from pyengine.supervisor.ending import Ending, Stage
from pyengine.supervisor.faults import Death, classify, told
from pyengine.supervisor.inbox import SignalInbox
from pyengine.supervisor.journal import Journal
from pyengine.supervisor.liveness import Liveness
from pyengine.supervisor.restarts import Again, Enough, Restarts, Stall
from pyengine.supervisor.settings import EXIT_CRASH_LOOP, EXIT_STUCK, Settings, Summary
from pyengine.supervisor.watch import Probe, Watch, is_there, probe

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class _Hang:
    """What was known of a command when it was ended for doing nothing; `bound` is the option that
    said when, with its value."""

    ticks: int
    has_trainers: bool
    bound: str


@dataclass(frozen=True, slots=True)
class _Over:
    """How one start ended; `hang`: by us, for it did nothing."""

    death: Death
    hang: _Hang | None
    seconds: float
    report: dict[str, Any] | None
    step: int | None
    runs: dict[str, int]


class Supervisor:
    """Runs one command until it ends well, is stopped, or cannot go on. Use once, by `run`.

    `targets` are the descriptors that its stdout and stderr are passed to.
    """

    def __init__(self, settings: Settings, targets: tuple[int, int] = (1, 2)) -> None:
        self._settings = settings
        self._targets = targets
        self._journal = Journal(settings.log)
        self._restarts = Restarts(settings)
        self._faults: dict[str, int] = {}
        self._runs: list[str] = []
        self._stop: int | None = None
        self._newest: dict[str, tuple[int, int, str]] = {}
        self._began = time.monotonic()

    def run(self) -> Summary:
        """Supervise until the end, in the main thread; return how it ended."""
        become_subreaper()
        with SignalInbox(*_STOPS, signal.SIGCHLD) as inbox:
            summary = self._run(inbox)
            self._await_writers(inbox)
        self._journal.note(
            "ended",
            result=summary.result,
            reason=summary.reason,
            exit_status=summary.exit_status,
            restarts=summary.restarts,
            faults=summary.faults,
        )
        return summary

    def _run(self, inbox: SignalInbox) -> Summary:
        self._newest = self._probe().newest
        while True:
            self._journal.start += 1
            with contextlib.closing(Watch()) as watch:
                try:
                    command = self._start(watch)
                except OSError as error:
                    status = 127 if isinstance(error, FileNotFoundError) else 126
                    return self._summary("not started", str(error), status)
                over = self._see_through(inbox, command, watch)
            if over is None:
                reason = "SIGKILL was sent, and the command is still there: it waits in the kernel"
                return self._summary("stuck", reason, EXIT_STUCK)
            if self._stop is not None or (over.death.exit_status == 0 and over.hang is None):
                return self._end_well(over)
            decision = self._judge(over)
            if isinstance(decision, Enough):
                is_loop = decision.result == "crash loop"
                status = EXIT_CRASH_LOOP if is_loop else over.death.exit_status
                return self._summary(decision.result, decision.reason, status)
            if not self._pause(inbox, decision):
                return self._end_well(over)

    def _start(self, watch: Watch) -> Command:
        environment = {
            **os.environ,
            config.LIFELINE_VARIABLE: watch.address,
            "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
        }
        command = Command(self._settings.command, environment, self._targets)
        words = shlex.join(self._settings.command)
        self._journal.note("started", pid=command.pid, command=words)
        return command

    def _see_through(self, inbox: SignalInbox, command: Command, watch: Watch) -> _Over | None:
        """Watch a command to its end and clear up after it; None: it cannot be ended."""
        began = time.monotonic()
        ending = Ending(command, watch, self._journal, self._settings)
        hang = self._attend(inbox, command, watch, ending)
        death = command.death
        if death is None:
            return None
        left = command.finish()
        runs = watch.runs()
        self._learn(runs)
        if left:
            self._journal.note("cleared", pids=left)
        report, step = watch.last_word()
        return _Over(death, hang, time.monotonic() - began, report, step, runs)

    def _attend(
        self, inbox: SignalInbox, command: Command, watch: Watch, ending: Ending
    ) -> _Hang | None:
        """Watch until the command has ended, or cannot be; return how it hung, if it did."""
        settings = self._settings
        liveness = Liveness(time.monotonic(), settings.start_bound, settings.hang_timeout)
        hang = None
        while command.death is None and not ending.is_stuck:
            waits = [liveness.interval, ending.remaining_seconds]
            _wait([inbox.fd, command.pidfd], min(wait for wait in waits if wait is not None))
            for number in self._signals(inbox, command.pid):
                ending.ask(number)
            signs, ticks = (command.received_bytes, watch.beats()), watch.ticks()
            hangs = liveness.look(time.monotonic(), *signs, has_ticked=ticks > 0)
            is_free = ending.stage == Stage.NONE and not command.is_blocked
            if hangs and is_free and command.death is None:
                hang = self._note_hang(liveness.silent_seconds, ticks, len(watch.trainers()))
                ending.tell("hang")
            ending.go_on()
            if not self._runs:
                self._learn(watch.runs())
        return hang

    def _note_hang(self, silent_seconds: float, ticks: int, trainers: int) -> _Hang:
        settings = self._settings
        option, seconds = ("--hang-timeout", settings.hang_timeout)
        if ticks == 0:
            option, seconds = ("--start-timeout", settings.start_bound)
        bound = f"{option} {seconds:g}"
        silent = round(silent_seconds, 3)
        self._journal.note(
            "hang", silent_seconds=silent, trainers=trainers, ticks=ticks, bound=bound
        )
        logger.warning(
            "no output and no tick for %.1f s (%s%s): the command is ended",
            silent,
            bound,
            "" if trainers else "; no engine has reported, so only output was seen",
        )
        return _Hang(ticks, trainers > 0, bound)

    def _signals(self, inbox: SignalInbox, command_pid: int) -> list[int]:
        """Take in signals; return those that ask for the end, in the form the command gets."""
        asked = []
        for number in inbox.take():
            if number == signal.SIGCHLD:
                reap_orphans(command_pid)
            else:
                self._stop = number
                name = signal.Signals(number).name
                logger.info("%s: the command is asked to end", name)
                self._journal.note("received", signal=name)
                asked.append(signal.SIGTERM if number == signal.SIGHUP else number)
        return asked

    def _judge(self, over: _Over) -> Again | Enough:
        """Class a death, note it, and decide what is done about it."""
        found = self._probe()
        fault = classify(
            over.death,
            over.report,
            is_hung=over.hang is not None,
            is_reachable=found.unreachable is None,
        )
        words = told(over.death, fault, over.report)
        has_new = any(
            self._is_new(run, newest, over.runs.get(run)) for run, newest in found.newest.items()
        )
        self._newest = {**self._newest, **found.newest}
        self._faults[fault] = self._faults.get(fault, 0) + 1
        self._journal.note(
            "died",
            fault=fault,
            exit_status=over.death.status,
            signal=None if over.death.signal is None else _name(over.death.signal),
            seconds=round(over.seconds, 3),
            step=over.step,
            error=over.report if over.death.signal is None else None,
            unreachable=found.unreachable,
            newest_snapshot=self._newest_text(),
            has_new_snapshot=has_new,
        )
        hang = over.hang
        # Of trainers that report to nobody, what they saved is all that is known.
        is_stall = hang is not None and (hang.ticks < 2 if hang.has_trainers else not has_new)
        stall = Stall(hang.ticks, hang.bound) if hang is not None and is_stall else None
        decision = self._restarts.died(
            time.monotonic(), words, has_new_snapshot=has_new, stall=stall
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

    def _is_new(self, run: str, newest: tuple[int, int, str], generation: int | None) -> bool:
        """Whether a run's newest snapshot was not there at the death before; of a run that was not
        known then, whether this start has made it."""
        known = self._newest.get(run)
        if known is not None:
            return newest > known
        return generation is not None and newest[0] >= generation

    def _pause(self, inbox: SignalInbox, decision: Again) -> bool:
        """Wait before a restart; False where a signal asks for the end meanwhile."""
        deadline = time.monotonic() + decision.pause_seconds
        while (remaining := deadline - time.monotonic()) > 0 and self._stop is None:
            _wait([inbox.fd], remaining)
            self._signals(inbox, 0)
        return self._stop is None

    def _end_well(self, over: _Over) -> Summary:
        death = over.death
        result = "finished" if self._stop is None else "stopped"
        reason = f"the command ended, {death}"
        if self._stop is not None:
            reason = f"{_name(self._stop)} asked for the end; {reason}"
        self._newest = {**self._newest, **self._probe().newest}
        return self._summary(result, reason, death.exit_status)

    def _summary(self, result: str, reason: str, exit_status: int) -> Summary:
        level = logger.info if result in ("finished", "stopped") else logger.error
        level("%s: %s", result, reason)
        return Summary(
            result=result,
            reason=reason,
            exit_status=exit_status,
            restarts=self._restarts.count,
            faults=dict(self._faults),
            seconds=round(time.monotonic() - self._began, 3),
            runs=tuple(self._runs),
            newest_snapshot=self._newest_text(),
            log=self._journal.path,
        )

    def _learn(self, runs: Iterable[str]) -> None:
        """Take note of runs that are there: from now on their absence is a fault."""
        self._runs += [run for run in runs if run not in self._runs]
        if self._runs:
            self._journal.place(os.path.join(self._runs[0], names.SUPERVISOR_LOG))

    def _probe(self) -> Probe:
        given = self._settings.run_dir
        if given is not None and is_there(given):
            self._learn([os.path.realpath(given)])
        return probe(self._runs)

    def _newest_text(self) -> str | None:
        newest = max(self._newest.values(), default=None)
        return newest[2] if newest else None

    def _await_writers(self, inbox: SignalInbox) -> None:
        """Give the writers of dead trainers their time; a further signal ends the wait."""
        writers = draining_writers()
        if writers:
            logger.info("waiting for the writer (pid %s) to drain", ", ".join(map(str, writers)))
        deadline = time.monotonic() + config.DRAIN_WAIT_SECONDS
        while draining_writers() and (remaining := deadline - time.monotonic()) > 0:
            _wait([inbox.fd], min(1.0, remaining))
            if self._signals(inbox, 0):
                return
        reap_orphans(0)


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)


def _wait(fds: list[int], seconds: float) -> None:
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    poller.poll(max(0, int(seconds * 1000) + 1))
