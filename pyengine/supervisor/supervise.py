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

from pyengine import config
from pyengine.errors import SharedMemoryError
from pyengine.events import logger
from pyengine.format import names
from pyengine.supervisor.command import (
    Command,
    become_subreaper,
    draining_writers,
    reap_orphans,
)
from pyengine.supervisor.ending import Ending, Stage
from pyengine.supervisor.inbox import SignalInbox
from pyengine.supervisor.journal import Journal
from pyengine.supervisor.judgement import Hang, Judge, Over, signal_name
from pyengine.supervisor.liveness import Liveness
from pyengine.supervisor.restarts import Again, Enough
from pyengine.supervisor.settings import EXIT_CRASH_LOOP, EXIT_STUCK, Settings, Summary
from pyengine.supervisor.watch import Probe, Watch, is_there, probe, refuse_nesting

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class _End:
    """How it all ended, as Summary says; `step`: the last one that ticked."""

    result: str
    reason: str
    exit_status: int
    step: int | None = None


class Supervisor:
    """Runs one command until it ends well, is stopped, or cannot go on. Use once, by `run`.

    `targets` are the descriptors that its stdout and stderr are passed to.
    """

    def __init__(self, settings: Settings, targets: tuple[int, int] = (1, 2)) -> None:
        self._settings = settings
        self._targets = targets
        self._journal = Journal(settings.log)
        self._judge = Judge(settings, self._journal)
        self._runs: list[str] = []
        self._has_untold_runs = False
        self._stop: int | None = None
        self._began = time.monotonic()

    def run(self) -> Summary:
        """Supervise until the end, in the main thread; return how it ended.

        Raises ConfigError where this process is supervised itself.
        """
        refuse_nesting()
        become_subreaper()
        with SignalInbox(*_STOPS, signal.SIGCHLD) as inbox:
            end = self._run(inbox)
            self._await_writers(inbox)
        summary = self._summary(end)
        self._journal.note(
            "ended",
            result=summary.result,
            reason=summary.reason,
            exit_status=summary.exit_status,
            restarts=summary.restarts,
            faults=summary.faults,
        )
        return summary

    def _run(self, inbox: SignalInbox) -> _End:
        self._judge.look(self._probe())
        while True:
            self._journal.start += 1
            try:
                watch = Watch()
            except (OSError, SharedMemoryError) as error:
                return _End("not started", str(error), 126)
            with contextlib.closing(watch):
                try:
                    command = self._start(watch)
                except OSError as error:
                    status = 127 if isinstance(error, FileNotFoundError) else 126
                    return _End("not started", str(error), status)
                over = self._see_through(inbox, command, watch)
            if over is None:
                reason = "SIGKILL was sent, and the command is still there: it waits in the kernel"
                return _End("stuck", reason, EXIT_STUCK)
            if self._stop is not None or (over.death.exit_status == 0 and over.hang is None):
                return self._end_well(over)
            decision = self._judge.died(over, self._probe_settled(inbox, over))
            if self._is_stopped():
                return self._end_well(over)
            if isinstance(decision, Enough):
                is_loop = decision.result == "crash loop"
                status = EXIT_CRASH_LOOP if is_loop else over.death.exit_status
                return _End(decision.result, decision.reason, status)
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

    def _see_through(self, inbox: SignalInbox, command: Command, watch: Watch) -> Over | None:
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
        self._has_untold_runs |= watch.untold_runs() > 0
        if left:
            self._journal.note("cleared", pids=left)
        report, step = watch.last_word()
        return Over(death, hang, time.monotonic() - began, report, step, runs)

    def _attend(
        self, inbox: SignalInbox, command: Command, watch: Watch, ending: Ending
    ) -> Hang | None:
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

    def _note_hang(self, silent_seconds: float, ticks: int, trainers: int) -> Hang:
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
        return Hang(ticks, trainers > 0, bound)

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

    def _pause(self, inbox: SignalInbox, decision: Again) -> bool:
        """Wait before a restart; False where a signal asks for the end meanwhile."""
        deadline = time.monotonic() + decision.pause_seconds
        while (remaining := deadline - time.monotonic()) > 0 and self._stop is None:
            _wait([inbox.fd], remaining)
            self._signals(inbox, 0)
        return self._stop is None

    def _end_well(self, over: Over) -> _End:
        reason = f"the command ended, {over.death}"
        if self._stop is None:
            return _End("finished", reason, over.death.exit_status)
        reason = f"{signal_name(self._stop)} asked for the end; {reason}"
        return _End("stopped", reason, over.death.exit_status, over.step)

    def _summary(self, end: _End) -> Summary:
        """Tell how it ended, once the writers have done what they could."""
        found = self._probe()
        self._judge.look(found)
        reason = end.reason
        is_stopped = end.result == "stopped"
        missing = self._judge.unsaved(end.step, found.unknown) if is_stopped else None
        if missing is not None:
            reason += f"; {missing}"
        level = logger.info if end.result in ("finished", "stopped") else logger.error
        (level if missing is None else logger.warning)("%s: %s", end.result, reason)
        return Summary(
            result=end.result,
            reason=reason,
            exit_status=end.exit_status,
            restarts=self._judge.restarts,
            faults=dict(self._judge.faults),
            seconds=round(time.monotonic() - self._began, 3),
            runs=tuple(self._runs),
            newest_snapshot=self._judge.newest,
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
        return probe(self._runs, None if given is not None else self._unknown())

    def _is_stopped(self) -> bool:
        return self._stop is not None

    def _probe_settled(self, inbox: SignalInbox, over: Over) -> Probe:
        """Look at the runs after a death; where it seems to have been in vain and a writer drains,
        once more when that is over: the next start would wait for it too."""
        is_draining = bool(draining_writers())  # before the look: it may be done right after it
        found = self._probe()
        if is_draining and not self._judge.has_new(over, found):
            self._await_writers(inbox)
            found = self._probe()
        return found

    def _unknown(self) -> str | None:
        """Return why the runs that were told may not be all; None: nothing says so."""
        if self._has_untold_runs:
            return "a trainer could not tell the path of its run (name it by --run)"
        if not self._runs:
            return "no trainer has told which run it works on (name it by --run)"
        return None

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


def _wait(fds: list[int], seconds: float) -> None:
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    poller.poll(max(0, int(seconds * 1000) + 1))
