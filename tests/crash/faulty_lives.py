"""The kill and error sweeps: one life with a fault at its n-th call, then what comes after.

A case names the life, the process whose calls are counted, the number of the call, and what happens
there. Real processes, real files; the lives before the faulty one are prepared once and copied.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from crash.lives import LIVES, Faults, Log, go_on, in_child, live, take_latest
from crash.oracle import bad_snapshots, judge_all, left_over, mistaken
from pyengine.catalog.scan import committed_names

TOKEN = "PYENGINE_CRASH_TOKEN"
"""In the environment of every process of a case, so that none is left behind."""

VICTIMS = ("itself", "other", "both")
ERRORS = ("EIO", "ENOSPC", "EINTR", "short")
PROCESSES = ("writer", "trainer")


@dataclass(frozen=True)
class Case:
    """One fault. `nth` counts the calls that change the disk, of one process in one life, or of
    "both", each by itself; with `reads`, those that open, read or close."""

    seed: int
    life: int
    process: str
    nth: int
    when: str = "before"
    victim: str = ""
    error: str = ""
    for_good: bool = False
    reads: bool = False

    @property
    def text(self) -> str:
        """How the case is named for `--only`."""
        what = f"kill-{self.victim}-{self.when}" if self.victim else self.error
        what = f"read-{what}" if self.reads else what
        ending = "-for-good" if self.for_good else ""
        return f"{self.seed}/{self.life}/{self.process}/{self.nth}/{what}{ending}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read what `text` gives."""
        seed, life, process, nth, what = text.split("/")
        place = (int(seed), int(life), process, int(nth))
        if what.startswith("kill-"):
            _, victim, when = what.split("-")
            return cls(*place, when=when, victim=victim)
        error = what.removesuffix("-for-good").removeprefix("read-")
        for_good, reads = what.endswith("-for-good"), what.startswith("read-")
        return cls(*place, error=error, for_good=for_good, reads=reads)

    def faults(self) -> Faults:
        """Return the plan of the case."""
        group = "reads" if self.reads else "changes"
        rule: dict[str, Any] = {"op": group, "nth": self.nth, "when": self.when}
        if self.victim:
            rule["action"] = "delay" if self.victim == "other" else "kill"
            if self.victim != "itself":
                rule["signal_pid"] = "parent" if self.process == "writer" else "children"
        elif self.error == "short":
            rule |= {"action": "short", "times": 0 if self.for_good else 1}
        else:
            times = 0 if self.for_good else 1
            rule |= {"action": "error", "errno": self.error, "times": times}
        return Faults(
            trainer=() if self.process == "writer" else (rule,),
            writer=() if self.process == "trainer" else (rule,),
            every_writer=self.for_good,
        )

    @property
    def is_of_trainer_alone(self) -> bool:
        """Whether the trainer is killed, and its writer lives on and drains."""
        return self.victim == ("itself" if self.process == "trainer" else "other")


class Stage:
    """The run as it is before each life, and which calls each life makes. A context manager.

    Everything lies in memory.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.base = tempfile.mkdtemp(prefix="crash-tests-", dir="/dev/shm")
        self.calls: dict[tuple[int, str], list[str]] = {}
        """What each process does in each life that changes the disk, by operation, in order."""
        self.reads: dict[int, list[str]] = {}
        """The same of what a trainer opens, reads and closes."""

    def __enter__(self) -> Stage:
        for number, life in enumerate(LIVES):
            self._copy(number, number + 1)
            counted = {process: f"{self.base}/{number}.{process}" for process in PROCESSES}
            rules = {
                process: ({"op": "changes", "action": "record", "file": file},)
                for process, file in counted.items()
            }
            read = f"{self.base}/{number}.reads"
            rules["trainer"] += ({"op": "reads", "action": "record", "file": read},)
            place = f"{self.base}/{number + 1}"
            with marked() as token:
                _live(place, self.seed, number, Faults(rules["trainer"], rules["writer"]))
                await_end(token)
            for process, file in counted.items():
                self.calls[number, process] = _ops(file)
            self.reads[number] = _ops(read)
            assert life.end == "kill" or _errors(place) == [], _errors(place)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.base, ignore_errors=True)

    def before(self, life: int) -> str:
        """Return the directory of `run` and `log` as they are before a life."""
        return f"{self.base}/{life}"

    def run(self, case: Case) -> str | None:
        """Run one case; return what is wrong, or None."""
        place = tempfile.mkdtemp(prefix="case-", dir=self.base)
        shutil.rmtree(place)
        copy_tree(self.before(case.life), place)
        try:
            with marked() as token:
                wrong = self._run(case, place, token)
                await_end(token)
            return wrong
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _run(self, case: Case, place: str, token: str) -> str | None:
        log = Log(f"{place}/log")
        before = len(log.read())
        try:
            code = _live(place, self.seed, case.life, case.faults())
            if code not in (0, -signal.SIGKILL):
                return f"the life ended with {code}"
            wrong = mistaken(log.read()[before:], f"{place}/run") if case.reads else None
            if wrong is not None:
                return wrong
            if case.is_of_trainer_alone and case.when == "after":
                await_end(token)
                code = self._take_latest_of_older(place, log)
                if code != 0:
                    return f"falling back to all rows ended with {code}; {log.read()[-3:]}"
            if case.is_of_trainer_alone:
                code = in_child(lambda: take_latest(f"{place}/run", log, self.seed))
                if code != 0:
                    return f"taking up the latest rows ended with {code}; {log.read()[-3:]}"
            code = in_child(lambda: go_on(f"{place}/run", log, self.seed))
            if code != 0:
                return f"going on ended with {code}; {log.read()[-3:]}"
        except TimeoutError as error:
            return str(error)
        run_dir = f"{place}/run"
        return judge_all(log.read(), before) or bad_snapshots(run_dir) or left_over(run_dir)

    def _take_latest_of_older(self, place: str, log: Log) -> int:
        """In a copy, damage the two newest snapshots (one always stays) and take up all rows."""
        copy = f"{place}.fallen"
        try:
            copy_tree(place, copy)
            for name in committed_names(f"{copy}/run")[1:][-2:]:
                damage_model(f"{copy}/run", name.text)
            return in_child(lambda: take_latest(f"{copy}/run", log, self.seed))
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _copy(self, source: int, target: int) -> None:
        if source == 0:
            os.mkdir(f"{self.base}/0")
        copy_tree(f"{self.base}/{source}", f"{self.base}/{target}")


def _ops(file: str) -> list[str]:
    with open(file, encoding="utf-8") as lines:
        return [json.loads(line)["op"] for line in lines]


def damage_model(run_dir: str, snapshot: str) -> None:
    """Flip a bit in a file of a snapshot that holds no rows, and is no other's."""
    path = min(glob.glob(f"{run_dir}/snapshots/{snapshot}/state/*.safetensors"))
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte ^ 1]))


def copy_tree(source: str, target: str) -> None:
    """Copy a directory to a path that does not exist."""
    # Hard links are to stay hard links.
    subprocess.run(["cp", "-a", source, target], check=True)


def _live(place: str, seed: int, number: int, plan: Faults) -> int:
    log = Log(f"{place}/log")
    return in_child(lambda: live(f"{place}/run", log, seed, LIVES[number], plan))


def _errors(place: str) -> list[dict[str, Any]]:
    return [fact for fact in Log(f"{place}/log").read() if fact["event"] == "error"]


@contextlib.contextmanager
def marked() -> Iterator[str]:
    """Mark the processes that are started meanwhile; kill those that are still there at the end."""
    token = f"{os.getpid()}-{os.urandom(8).hex()}"
    os.environ[TOKEN] = token
    try:
        yield token
    finally:
        del os.environ[TOKEN]
        for pid in _marked(token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def await_end(token: str, seconds: float = 60.0) -> None:
    """Wait for the end of every marked process; TimeoutError."""
    for pid in _marked(token):
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            is_over = bool(poller.poll(int(seconds * 1000)))
            os.close(pidfd)
            if not is_over:
                raise TimeoutError(f"process {pid} is still there after {seconds:.0f} s")


def _marked(token: str) -> list[int]:
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(entry))
    return found


def kill_cases(stage: Stage) -> list[Case]:
    """Return every kill: of the process that calls, of the other, of both; before and after."""
    return [
        Case(stage.seed, life, process, nth, when=when, victim=victim)
        for (life, process), calls in stage.calls.items()
        for nth in range(1, len(calls) + 1)
        for when in ("before", "after")
        for victim in VICTIMS
    ]


def error_cases(stage: Stage) -> list[Case]:
    """Return every call with every error that it can have, once and for good: of the trainer, of
    the writer, and the n-th of both."""
    cases = []
    for life in range(len(LIVES)):
        calls = {process: stage.calls[life, process] for process in PROCESSES}
        calls["both"] = max(calls.values(), key=len)
        for process, ops in calls.items():
            for nth, op in enumerate(ops, 1):
                cases += [
                    Case(stage.seed, life, process, nth, error=error, for_good=for_good)
                    for error in errors_of(op)
                    for for_good in (False, True)
                ]
    return cases


def errors_of(op: str) -> tuple[str, ...]:
    """Return the errors that an operation can have: only a write can be short."""
    return ERRORS if op in ("write", "pwrite") else tuple(e for e in ERRORS if e != "short")


def read_cases(stage: Stage) -> list[Case]:
    """Return every open, read and close of a trainer as one that fails, once and for good. A close
    that fails has closed."""
    return [
        Case(
            *(stage.seed, life, "trainer", nth),
            when="after" if op == "close" else "before",
            error="EIO",
            for_good=for_good,
            reads=True,
        )
        for life, ops in stage.reads.items()
        for nth, op in enumerate(ops, 1)
        for for_good in (False, True)
    ]
