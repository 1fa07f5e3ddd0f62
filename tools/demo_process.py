"""The demo's arms as processes: started, watched, killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from demo_log import count_steps, end_file, events_file, written_bytes
from demo_plan import SLACK, Clock, Plan, Speed
from demo_results import Arm
from rich.progress import Progress

HERE = Path(__file__).resolve().parent
MEASURED = "measure"

Shorten = Callable[[int], int | None]
"""From steps done to a smaller number of steps, or None."""


class ArmProcess:
    """One life of an arm: started here, killed or waited for here."""

    def __init__(self, program: str, saves: str, directory: Path, options: list[str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.life = len(list(directory.glob("output-*.txt"))) + 1
        self.output = directory / f"output-{self.life}.txt"
        command = [sys.executable, str(HERE / program), "--saves", saves]
        self.spawned_ns = time.monotonic_ns()
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--arm-dir", str(directory), *options],
                stdout=output, stderr=output, env=_environment(),
            )  # fmt: skip

    def run(self, tick: Ticker, clock: Clock, kill_after_steps: int | None = None) -> int | None:
        """Wait for the end, or kill it after that many steps; return the moment of the kill."""
        while self._process.poll() is None:
            done = count_steps(self.directory, self.life)
            tick(done)
            clock.check(f"in arm {self.directory.name} at step {tick.base + done}")
            if kill_after_steps is not None and done >= kill_after_steps:
                return self._kill()
            time.sleep(0.002 if kill_after_steps is not None else 0.1)
        if self._process.returncode:
            raise SystemExit(f"{self.output} ends with:\n{self.output.read_text()[-4000:]}")
        return None

    def _kill(self) -> int:
        written = written_bytes(str(self._process.pid))
        killed_ns = time.monotonic_ns()
        self._process.kill()
        self._process.wait()
        with events_file(self.directory, self.life).open("a") as events:
            events.write(
                json.dumps({"event": "killed", "at_ns": killed_ns, "written": written}) + "\n"
            )
        return killed_ns

    def stop(self) -> None:
        """End the process if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()


def _environment() -> dict[str, str]:
    """The examples lie beside the tools; whatever the caller had on the path stays.

    Threads of torch that wait must not spin: where other work needs the cores an update took three
    times as long (2 threads on 2 busy cores, 2026-11-30: 460 ms instead of 150).
    """
    path = [str(HERE.parent / "examples"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ | {"PYTHONPATH": os.pathsep.join(path)}


class Ticker:
    """Move the bar of one arm; steps made again after a kill do not move it twice.

    `shorten` may lower the number of steps while the arm runs: `ends_at` tells, and the arm hears
    of it by a file.
    """

    def __init__(
        self, progress: Progress, directory: Path, steps: int, shorten: Shorten | None = None
    ) -> None:
        self._progress = progress
        name = directory.name
        text = "measuring this machine" if name == MEASURED else f"arm {name}"
        self._task = progress.add_task(text, total=steps)
        self._shorten = shorten
        self._end_file = end_file(directory)
        self.ends_at = steps
        self.base = 0

    def __call__(self, done: int) -> None:
        sooner = self._shorten(done) if self._shorten is not None else None
        if sooner is not None and sooner < self.ends_at:
            self.ends_at = sooner
            temporary = self._end_file.with_suffix(".tmp")
            temporary.write_text(str(sooner))
            temporary.replace(self._end_file)
        completed = min(self.base + done, self.ends_at)
        self._progress.update(self._task, completed=completed, total=self.ends_at)


def play_arm(
    program: str,
    saves: str,
    options: list[str],
    tick: Ticker,
    directory: Path,
    clock: Clock,
    killed_at: int | None = None,
) -> Arm:
    """Run one arm from its first start to its end; `killed_at` kills it once on the way."""
    lives = [ArmProcess(program, saves, directory, options)]
    try:
        killed_ns = lives[0].run(tick, clock, killed_at)
        if killed_at is not None:
            if killed_ns is None:
                raise SystemExit(f"the arm in {directory} ended before it could be killed")
            lives.append(ArmProcess(program, saves, directory, options))
            tick.base = killed_at
            lives[1].run(tick, clock)
    finally:
        lives[-1].stop()
    return Arm.read(directory, [life.spawned_ns for life in lives], killed_ns)


def measure(below: Path, progress: Progress, clock: Clock) -> Speed:
    """Return the speed of this machine, from a short run without saves."""
    directory = below / MEASURED
    plan = Plan(capacity=500, steps=600, train_every=10, save_every=10_000)
    options = [*plan.options(1), "--learning-starts", "100", "--exploration-steps", "1"]
    tick = Ticker(progress, directory, plan.steps)
    arm = play_arm("demo_arm.py", "pickle", options, tick, directory, clock)
    return speed_of(arm)


def speed_of(arm: Arm) -> Speed:
    """Return how fast an arm was in its last life."""
    life = arm.lives[-1]
    learning = ~np.isnan(life["loss"])
    play = SLACK * float(np.median(life["step_ns"][~learning])) / 1e9
    learn = SLACK * float(np.median(life["step_ns"][learning])) / 1e9 - play
    start = SLACK * float(life["end_ns"][0] - arm.spawned_ns[-1]) / 1e9
    return Speed(play, learn, start)
