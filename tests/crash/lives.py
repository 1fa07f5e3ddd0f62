"""The scenario: a run in three lives, with everything in it that a crash may meet.

    1  a fresh start; snapshots, one of them not waited for; the ring seals segments; closed
    2  restored; the ring wraps and rows age out; snapshots are pruned; killed: the writer drains
    3  restored from what the drain committed; more snapshots; closed

Each life runs in a forked process, its writer in one of its own as always. What happened is noted
in a log, one JSON line each, and in the journal where one is being written.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyengine
from crash.training import Training, expected_digests
from pyengine import errors
from pyengine.events import logger
from pyengine.fs import door, faults
from pyengine.fs.journal import JournalDoor

KEEP_LAST = 2
STEPS = 40
"""More steps than any life makes."""

WAIT_SECONDS = 60.0
"""How long a snapshot may take; never reached."""


@dataclass(frozen=True, slots=True)
class Life:
    """Train up to `until`, with snapshots after some steps, then end."""

    until: int
    snapshots: tuple[int, ...]
    waited: tuple[int, ...]
    end: str = "close"
    """"close" or "kill"."""


LIVES = (
    Life(until=9, snapshots=(2, 5, 8), waited=(2, 8)),
    Life(until=20, snapshots=(11, 15, 19), waited=(15,), end="kill"),
    Life(until=29, snapshots=(23, 26, 28), waited=(23, 26, 28)),
)


@dataclass(frozen=True)
class Faults:
    """Rules of a fault plan, for the trainer and for its first writer (or every one)."""

    trainer: tuple[dict[str, Any], ...] = ()
    writer: tuple[dict[str, Any], ...] = ()
    every_writer: bool = False


@dataclass
class Log:
    """Facts of lives, appended to a file that outlives them."""

    path: str

    def note(self, **facts: Any) -> None:
        """Append one fact, here and in the journal."""
        active = door.active
        if isinstance(active, JournalDoor):
            active.mark(**facts)
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, json.dumps(facts).encode() + b"\n")
        os.close(fd)

    def read(self) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError), open(self.path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
        return []


class Facts(Log):
    """The same in memory, for what runs in this process."""

    def __init__(self) -> None:
        super().__init__("")
        self.facts: list[dict[str, Any]] = []

    def note(self, **facts: Any) -> None:
        self.facts.append(facts)

    def read(self) -> list[dict[str, Any]]:
        return self.facts


@dataclass
class _Watch:
    """Runs calls of the engine: how long each kind took at most, and what was raised."""

    log: Log
    longest: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def call(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        except (errors.PyengineError, OSError) as error:  # what has a type; the rest ends the life
            self.log.note(event="error", at=what, type=type(error).__name__, text=str(error))
        finally:
            seconds = time.monotonic() - begun
            self.longest[what] = max(self.longest.get(what, 0.0), seconds)


def live(run_dir: str, log: Log, seed: int, life: Life, plan: Faults = Faults()) -> None:
    """Run one life in this process, which is one of its own. Never raises what has a type."""
    arm(plan)
    watch = _Watch(log)
    logger.handlers[:] = [_Words(log)]
    logger.setLevel(logging.WARNING)
    started: list[pyengine.PendingSnapshot] = []
    training = Training(seed)
    with (
        watch.call("life"),
        pyengine.SnapshotEngine(run_dir, keep_last=KEEP_LAST, budget=None) as engine,
    ):
        if not plan.every_writer:
            os.environ.pop("PYENGINE_FAULT_PLAN", None)
        training.track(engine)
        report = engine.restore()
        note_restored(log, report, training, seed)
        for step in range(report.next_step, life.until):
            with watch.call("step"):
                training.step(step)
                log.note(event="added", step=step)
            with watch.call("tick"):
                engine.tick(step)
            if step in life.snapshots:
                _take(engine, watch, started, step, is_waited=step in life.waited)
        if life.end == "kill":
            log.note(event="longest", **watch.longest)
            os.kill(os.getpid(), signal.SIGKILL)
    log.note(event="longest", **watch.longest)
    for pending in started:
        log.note(event="fate", name=pending.name, state=pending.state.name)
    training.close()


def arm(plan: Faults) -> None:
    """Have this process, and the writers it starts, follow a plan."""
    if plan.trainer:
        door.active = faults.door_of(json.dumps(plan.trainer))
    if plan.writer:
        os.environ["PYENGINE_FAULT_PLAN"] = json.dumps(plan.writer)


def play(root: str, log: Log, seed: int, plan: Faults) -> None:
    """Run all lives of the scenario in `root`/run; every process follows the plan."""
    for life in LIVES:
        code = in_child(partial(live, f"{root}/run", log, seed, life, plan))
        assert code == (-signal.SIGKILL if life.end == "kill" else 0), log.read()


class _Words(logging.Handler):
    """Notes the warnings and errors that people would read."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.note(event="logged", text=record.getMessage())


def _take(
    engine: pyengine.SnapshotEngine,
    watch: _Watch,
    started: list[pyengine.PendingSnapshot],
    step: int,
    *,
    is_waited: bool,
) -> None:
    pending = None
    with watch.call("snapshot"):
        pending = engine.snapshot(step)
        started.append(pending)
        watch.log.note(event="started", name=pending.name)
    if pending is not None and is_waited:
        with watch.call("wait"):
            info = pending.wait(WAIT_SECONDS)
            watch.log.note(event="durable", name=info.name)


def note_restored(log: Log, report: Any, training: Training, seed: int) -> None:
    step = report.global_step if report else None
    right = True if step is None else training.digest() == expected_digests(seed, STEPS)[step]
    name = report.snapshot.name if report else None
    log.note(event="restored", name=name, step=step, right=right)


def go_on(run_dir: str, log: Log, seed: int, *, snapshots: int = 2) -> None:
    """Restore, take further snapshots, close; restore once more. Notes what came back."""
    for more in (snapshots, 0):
        go_on_once(run_dir, log, seed, snapshots=more)
    log.note(event="whole")


def go_on_once(run_dir: str, log: Log, seed: int, *, snapshots: int) -> None:
    """Restore, take so many snapshots, one a step, close. Notes what came back."""
    training = Training(seed)
    with pyengine.SnapshotEngine(run_dir, keep_last=KEEP_LAST, budget=None) as engine:
        training.track(engine)
        report = engine.restore()
        note_restored(log, report, training, seed)
        for step in range(report.next_step, report.next_step + snapshots):
            training.step(step)
            info = engine.snapshot(step).wait(WAIT_SECONDS)
            log.note(event="durable", name=info.name)
    training.close()


def take_latest(run_dir: str, log: Log, seed: int) -> None:
    """Restore with the rows that came after the snapshot, and note how many there are."""
    training = Training(seed)
    with pyengine.SnapshotEngine(run_dir, keep_last=KEEP_LAST, budget=None) as engine:
        training.track(engine)
        report = engine.restore(replay="latest")
        if report:
            rows, refs = training.ring[training.ring.refs()], training.ring.refs()
            right = bool((rows["number"] == refs).all())
            log.note(event="latest", right=right, counts=training.ring.total_count.tolist())
    training.close()


def in_child(function: Callable[[], None], *, timeout: float = 100.0) -> int:
    """Run `function` in a forked process; return its exit code (negative: the signal).

    TimeoutError, with the process killed, where it takes longer.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    pidfd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        is_over = bool(poller.poll(int(timeout * 1000)))
        if not is_over:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(pidfd)
    if not is_over:
        raise TimeoutError(f"a life was not over after {timeout:.0f} s")
    return os.waitstatus_to_exitcode(status)
