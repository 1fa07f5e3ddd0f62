"""Contestants as processes that live as long as the whole run, and contests between some of them.

A contestant waits for its turn on a pipe, so that only one of them works at a time. In every second
round the order is turned round: nobody always comes first.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.process import told_exit
from benchmarks.rivals import OURS, Rival

TURN_SECONDS = 300.0
"""No turn takes this long; one that does ends its contestant."""

END_SECONDS = 30.0
SETTLE_SECONDS = 0.01
LOG_TAIL_BYTES = 1_500

Answers = dict[str, dict[str, Any]]


class ContestantFailed(RuntimeError):
    """A contestant ended, or did not answer in time: how, and what it said last."""


class Contestant:
    """One rival's process; it ends with `close()`, or with this process.

    Requests are not buffered: what a dead process did not take is not tried again by `close()`.
    """

    def __init__(self, rival: Rival) -> None:
        self.rival = rival
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  close() closes it
        target = f"benchmarks.rivals.{rival.target}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contestant", target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
        )
        self._answers = b""
        self._is_ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End it in the midst of a turn; what it holds is gone when this returns."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it; a turn that is being played is waited for."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()
        self._log.close()

    def wait_until_ready(self) -> None:
        """Wait until its library is imported."""
        if not self._is_ready:
            self._answer("import")
            self._is_ready = True

    def ask(self, turn: str, **arguments: Any) -> dict[str, Any]:
        """Have it play one turn; return its answer. ContestantFailed where none comes."""
        assert self._process.stdin is not None
        request = json.dumps({"turn": turn, "arguments": arguments}) + "\n"
        try:
            self._process.stdin.write(request.encode())
        except BrokenPipeError:
            raise self._failed(turn) from None
        return self._answer(turn)

    def _answer(self, turn: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        end = time.monotonic() + TURN_SECONDS
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._answers:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(descriptor, 1 << 16) if ready else b""
            if not piece:
                raise self._failed(turn, is_late=not ready)
            self._answers += piece
        line, _, self._answers = self._answers.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failed(self, turn: str, *, is_late: bool = False) -> ContestantFailed:
        """End it where it still runs; return what there is to say."""
        if is_late:
            self.kill()
            how = f"no answer in {TURN_SECONDS:.0f} s"
        else:
            # Its pipe is closed: it is ending.
            try:
                how = told_exit(self._process.wait(END_SECONDS))
            except subprocess.TimeoutExpired:
                self.kill()
                how = "it answers no more"
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        said = self._log.read().decode(errors="replace").strip()
        return ContestantFailed(f"{self.rival.name}: {turn}: {how}; it said last: {said}")


class Contest:
    """Contestants that take turns. One that fails is left out from then on, loudly; ours may not.

    Each has a directory of its own; "@" in a turn's argument stands for it.
    """

    def __init__(self, contestants: Sequence[Contestant], directory: Path) -> None:
        self.contestants = {contestant.rival.name: contestant for contestant in contestants}
        self.failures: dict[str, str] = {}
        self._directory = directory

    def directory_of(self, name: str) -> Path:
        return self._directory / name

    def each(self, turn: str, **arguments: Any) -> Answers:
        """Have everyone play a turn, one after the other; return the answers by name."""
        return self.round(dict.fromkeys(self.contestants, turn), **arguments)

    def round(self, turns: dict[str, str], *, backwards: bool = False, **arguments: Any) -> Answers:
        """Play one round: `turns` names each contestant's turn; "who.what" is one more of `who`."""
        answers = {}
        for label in list(reversed(turns) if backwards else turns):
            name = label.partition(".")[0]
            if name in self.contestants:
                time.sleep(SETTLE_SECONDS)
                try:
                    answers[label] = self.ask(name, turns[label], **arguments)
                except ContestantFailed as failure:
                    self._leave_out(name, failure)
        return answers

    def ask(self, name: str, turn: str, **arguments: Any) -> dict[str, Any]:
        own = str(self.directory_of(name))
        arguments = {
            key: value.replace("@", own) if isinstance(value, str) else value
            for key, value in arguments.items()
        }
        return self.contestants[name].ask(turn, **arguments)

    def start(self) -> None:
        """Make the directories, and wait until everyone's library is imported."""
        for name, contestant in list(self.contestants.items()):
            self.directory_of(name).mkdir(parents=True)
            try:
                contestant.wait_until_ready()
            except ContestantFailed as failure:
                self._leave_out(name, failure)

    def _leave_out(self, name: str, failure: ContestantFailed) -> None:
        if name == OURS.name:
            raise failure
        print(f"left out: {failure}", file=sys.stderr)
        self.failures[name] = str(failure)
        del self.contestants[name]


class Pool:
    """The processes of all rivals that have been in a contest. Owned by the run; close it."""

    def __init__(self) -> None:
        self._contestants: dict[str, Contestant] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.disband()

    def disband(self) -> None:
        """End all processes, between contests: what libraries and heaps keep is free again."""
        for contestant in self._contestants.values():
            contestant.close()
        self._contestants.clear()

    @contextmanager
    def contest(self, rivals: Sequence[Rival], directory: Path) -> Iterator[Contest]:
        """Bring `rivals` together; when it ends they hold neither rows nor open files.

        `failures` of the contest are complete when it has ended.

        Processes that are not there yet start now, all importing at once.
        """
        contestants = [self._process_of(rival) for rival in rivals]
        started = Contest(contestants, directory)
        try:
            started.start()
            yield started
        except BaseException:
            for contestant in contestants:
                contestant.kill()
            raise
        started.each("close")

    def _process_of(self, rival: Rival) -> Contestant:
        known = self._contestants.get(rival.target)
        if known is None or not known.is_alive:
            if known is not None:
                known.close()
            known = self._contestants[rival.target] = Contestant(rival)
        return known
