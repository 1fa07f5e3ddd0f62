"""One arm: the agent under `pyengine run`, from its first step to its end, with faults or without.

No human and no tool helps it: whatever a fault ends is started again by the supervisor. Between two
faults chaos only watches, and notes what it sees.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from chaos_diary import events_of, history_of, steps_of
from chaos_disk import disk
from chaos_faults import KINDS, Fault
from chaos_scene import GivenUpError, Scene
from numpy.typing import NDArray

from pyengine.supervisor.journal import read_events

TRAINER = Path(__file__).with_name("chaos_trainer.py")
NEEDS_DISK = "fill disk"
_LAST_WAIT_SECONDS = 600.0

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What an arm is: `replay` is how the agent restores, "exact" or "latest"."""

    name: str
    seed: int
    steps: int
    replay: str
    faults: tuple[Fault, ...] = ()
    hang_timeout: float = 10.0


@dataclass(slots=True)
class Struck:
    """A fault that was done. `start` and `step`: where the agent stood; `harmed`: the snapshot that
    need not be restored any more; `skipped`, `failed`: why it was left out, why it ended badly."""

    fault: Fault
    at: float = 0.0
    start: int = 0
    step: int = -1
    what: str = ""
    harmed: frozenset[str] = frozenset()
    skipped: str | None = None
    failed: str | None = None


@dataclass(slots=True)
class Outcome:
    """What became of an arm."""

    plan: Plan
    struck: list[Struck] = field(default_factory=list)
    status: int = -1
    summary: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)
    deaths: list[dict[str, Any]] = field(default_factory=list)
    records: NDArray[np.void] = field(default_factory=lambda: np.zeros(0))

    @property
    def history(self) -> NDArray[np.void]:
        """The records that count, by step."""
        return history_of(self.records)


def play(plan: Plan, directory: Path, tell: Progress = lambda _: None) -> Outcome:
    """Run one arm below an empty directory; its words go to log.txt there."""
    outcome = Outcome(plan)
    began = time.monotonic()
    with disk(directory) as no_disk, _supervised(plan, directory) as supervisor:
        with contextlib.closing(Scene(directory, supervisor)) as scene:
            for fault in plan.faults:
                outcome.struck.append(_strike(scene, fault, no_disk, tell))
                if scene.is_over:
                    break
            _await_end(scene, tell)
        outcome.status = supervisor.wait(_LAST_WAIT_SECONDS)
        output = (directory / "summary.json").read_text()
        outcome.summary = json.loads(output) if output else {}
        outcome.seconds = time.monotonic() - began
    outcome.events = events_of(directory)
    outcome.records = steps_of(directory)
    outcome.deaths = list(_deaths(directory / "supervisor.jsonl"))
    return outcome


def _strike(scene: Scene, fault: Fault, no_disk: str | None, tell: Progress) -> Struck:
    struck = Struck(fault)
    if fault.kind == NEEDS_DISK and no_disk is not None:
        struck.skipped = no_disk
        return struck
    try:
        scene.await_that(f"step {fault.step}", lambda: _reached(scene, fault.step, tell))
        struck.start, struck.step, struck.at = scene.start, scene.step(), time.monotonic()
        before = set(scene.harmed_snapshots)
        try:
            struck.what = KINDS[fault.kind].strike(scene, fault)
        except LookupError as error:
            struck.skipped = str(error)
        struck.harmed = frozenset(scene.harmed_snapshots - before)
        _await_recovery(scene, struck, tell)
    except GivenUpError as error:
        struck.failed = str(error)
    return struck


def _reached(scene: Scene, step: int, tell: Progress) -> bool:
    now = scene.step()
    tell(now)
    return now >= step


def _await_recovery(scene: Scene, struck: Struck, tell: Progress) -> None:
    """Wait for a new step; where the fault is not hasty, for a new durable snapshot too."""
    done_at = time.monotonic()
    starts_again = KINDS[struck.fault.kind].starts_again

    def is_new(event: dict[str, Any]) -> bool:
        return bool(event["at"] > done_at and event["start"] >= struck.start + starts_again)

    def has_tick() -> bool:
        if starts_again and scene.start == struck.start:
            return False
        return _reached(scene, 0, tell) and scene.last_at() > done_at

    def has_durable() -> bool:
        _reached(scene, 0, tell)
        found = [e for e in events_of(scene.witness) if is_new(e)]
        return any(event["event"] in ("durable", "ended") for event in found)

    scene.await_that("a step after the fault", has_tick)
    if not struck.fault.is_hasty:
        scene.await_that("a durable snapshot after the fault", has_durable)


def _await_end(scene: Scene, tell: Progress) -> None:
    deadline = time.monotonic() + _LAST_WAIT_SECONDS
    while not scene.is_over and time.monotonic() < deadline:
        scene.wait(0.2)
        tell(scene.step())


@contextlib.contextmanager
def _supervised(plan: Plan, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the agent under its supervisor; neither outlives the block."""
    run_dir = directory / "disk" / "run"
    options: dict[str, Any] = {
        "hang-timeout": plan.hang_timeout,
        "start-timeout": plan.hang_timeout, "grace": 3, "backoff": 0.5, "backoff-max": 5,
        "log": directory / "supervisor.jsonl", "run": run_dir,
    }  # fmt: skip
    agent = {
        "run-dir": run_dir, "witness": directory, "seed": plan.seed, "steps": plan.steps,
        "replay": plan.replay, "drain-wait": 3,
    }  # fmt: skip
    command = [
        *(sys.executable, "-m", "pyengine", "run", "--json", *_options(options)),
        *("--", sys.executable, str(TRAINER), *_options(agent)),
    ]
    with open(directory / "summary.json", "wb") as out, open(directory / "log.txt", "wb") as log:
        supervisor = subprocess.Popen(command, stdout=out, stderr=log, start_new_session=True)
    try:
        yield supervisor
    finally:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGTERM):
            if supervisor.poll() is None:
                supervisor.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    supervisor.wait(10)
        if supervisor.poll() is None:
            supervisor.kill()
            supervisor.wait()


def _options(values: dict[str, Any]) -> list[str]:
    return [text for name, value in values.items() for text in (f"--{name}", str(value))]


def _deaths(path: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        yield from (event for event in read_events(str(path)) if event["event"] == "died")
