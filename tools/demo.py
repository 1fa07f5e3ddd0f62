"""Show on a real environment that a SIGKILLed run continues bit for bit, at no visible cost.

Three arms train the same DQN on Pong (examples/dqn_atari.py), one after the other:

    A   with pyengine, never killed
    B   with pyengine, killed by SIGKILL at a random step after its ring has wrapped; then the same
        command is started again
    C   with torch.save and a pickle of the arrays, killed at the same step and started again

It does not claim that the agent learns: a few minutes are too short for that. The table compares
A and B byte by byte and sets the costs of C beside them.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from demo_log import count_steps
from demo_report import Arm, Outcome, draw, print_report
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

HERE = Path(__file__).resolve().parent
ROW_BYTES = 2 * 4 * 84 * 84 + 8 + 4 + 1 + 1
BUDGET_SECONDS = 600
STARTS_AND_REPORT_SECONDS = 45
"""Time for the imports of six processes, the restores, the digests and the picture."""

SLACK = 1.2
"""Above the median: slow steps happen, but one burst of other work must not shrink the demo."""

DISK_BYTES = 6 << 30


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of every arm."""

    capacity: int = 16_000
    steps: int = 20_000
    train_every: int = 8
    save_every: int = 500
    pickle_every: int = 2_000

    def options(self, seed: int) -> list[str]:
        settings = {
            "seed": seed, "steps": self.steps, "capacity": self.capacity,
            "train-every": self.train_every, "snapshot-every": self.save_every,
            "learning-starts": 1_000, "exploration-steps": 10_000,
        }  # fmt: skip
        return [text for name, value in settings.items() for text in (f"--{name}", str(value))]

    def seconds(self, play: float, learn: float) -> float:
        """Return how long three arms take, given seconds per step and per update."""
        return 3.2 * self.steps * (play + learn / self.train_every)


def fit(plan: Plan, play: float, learn: float, seconds: float) -> Plan:
    """Return the plan, made smaller until it fits: first fewer updates, then fewer steps."""
    while plan.seconds(play, learn) > seconds and plan.train_every < 32:
        plan = replace(plan, train_every=plan.train_every * 2)
    share = seconds / plan.seconds(play, learn)
    if share < 1.0:
        capacity = max(2_000, int(plan.capacity * share) // 1_000 * 1_000)
        plan = replace(plan, capacity=capacity, steps=capacity + 4_000)
    return plan


class ArmProcess:
    """One life of an arm: started here, killed or waited for here."""

    def __init__(self, saves: str, directory: Path, options: list[str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.life = len(list(directory.glob("output-*.txt"))) + 1
        self.output = directory / f"output-{self.life}.txt"
        command = [sys.executable, str(HERE / "demo_arm.py"), "--saves", saves]
        self.spawned_ns = time.monotonic_ns()
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--arm-dir", str(directory), *options],
                stdout=output, stderr=output, env=os.environ | {"PYTHONPATH": _python_path()},
            )  # fmt: skip

    def run(self, tick: Ticker, kill_after_steps: int | None = None) -> int | None:
        """Wait for the end, or kill it after that many steps; return the moment of the kill."""
        while self._process.poll() is None:
            done = count_steps(self.directory, self.life)
            tick(done)
            if kill_after_steps is not None and done >= kill_after_steps:
                killed_ns = time.monotonic_ns()
                self._process.kill()
                self._process.wait()
                return killed_ns
            time.sleep(0.002 if kill_after_steps is not None else 0.1)
        if self._process.returncode:
            raise SystemExit(f"{self.output} ends with:\n{self.output.read_text()[-4000:]}")
        return None

    def stop(self) -> None:
        """End the process if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()


def _python_path() -> str:
    """The example lies beside the tools; whatever the caller had on the path stays."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(HERE.parent / "examples"), *([inherited] if inherited else [])])


class Ticker:
    """Move the bar of one arm; steps made again after a kill do not move it twice."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=total)
        self._total = total
        self.base = 0

    def __call__(self, done: int) -> None:
        self._progress.update(self._task, completed=min(self.base + done, self._total))


def play_arm(
    saves: str, directory: Path, options: list[str], tick: Ticker, killed_at: int | None = None
) -> Arm:
    """Run one arm from its first start to its end; `killed_at` kills it once on the way."""
    lives = [ArmProcess(saves, directory, options)]
    try:
        killed_ns = lives[0].run(tick, killed_at)
        if killed_at is not None:
            if killed_ns is None:
                raise SystemExit(f"the arm in {directory} ended before it could be killed")
            lives.append(ArmProcess(saves, directory, options))
            tick.base = killed_at
            lives[1].run(tick)
    finally:
        lives[-1].stop()
    return Arm.read(directory, [life.spawned_ns for life in lives], killed_ns)


def measure(directory: Path, progress: Progress) -> tuple[float, float]:
    """Return seconds per playing step and seconds per update, from a short run without saves."""
    plan = Plan(capacity=500, steps=600, train_every=10, save_every=10_000)
    options = [*plan.options(1), "--learning-starts", "100", "--exploration-steps", "1"]
    tick = Ticker(progress, "measuring this machine", plan.steps)
    (life,) = play_arm("pickle", directory, options, tick).lives
    learning = ~np.isnan(life["loss"])
    play = SLACK * float(np.median(life["step_ns"][~learning])) / 1e9
    return play, SLACK * float(np.median(life["step_ns"][learning])) / 1e9 - play


def run(args: argparse.Namespace, console: Console) -> int:
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 31)
    console.print(f"seed {seed} (repeat this demo with --seed {seed})")
    shutil.rmtree(args.directory, ignore_errors=True)
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        play, learn = measure(args.directory / "measure", progress)
        left = args.budget - (time.time() - args.started) - STARTS_AND_REPORT_SECONDS
        plan = fit(Plan(), play, learn, left)
        _announce(plan, play, learn, console)
        draw_from = random.Random(seed)
        killed_at = draw_from.randrange(plan.capacity + 1_000, plan.steps - 500)
        options = plan.options(seed % 10_000)
        tickers = [Ticker(progress, name, plan.steps) for name in ("arm A", "arm B", "arm C")]
        a = play_arm("engine", args.directory / "A", options, tickers[0])
        b = play_arm("engine", args.directory / "B", options, tickers[1], killed_at)
        pickled = replace(plan, save_every=plan.pickle_every).options(seed % 10_000)
        c = play_arm("pickle", args.directory / "C", pickled, tickers[2], killed_at)
    shutil.rmtree(args.directory / "C" / "run")
    outcome = Outcome(a, b, c, killed_at, seed, ROW_BYTES)
    print_report(outcome, console)
    picture = args.directory / "demo.png"
    draw(outcome, picture)
    console.print(f"picture: {picture}; arm B's run: {args.directory / 'B' / 'run'}")
    console.print(f"{time.time() - args.started:.0f} s in all, installation included")
    return 0 if outcome.is_identical else 1


def _announce(plan: Plan, play: float, learn: float, console: Console) -> None:
    console.print(f"{play * 1e3:.2f} ms per step, {learn * 1e3:.1f} ms per update on this machine")
    full = Plan()
    if plan != full:
        console.print(
            f"[yellow]slower than the demo was made for: {plan.steps} steps (of {full.steps}),"
            f" a ring of {plan.capacity} rows (of {full.capacity}), an update every"
            f" {plan.train_every} steps (of {full.train_every})[/]"
        )
    console.print(
        f"{plan.steps} steps an arm, ring of {plan.capacity} rows"
        f" ({plan.capacity * ROW_BYTES / 1e9:.1f} GB); saves every {plan.save_every} steps,"
        f" in arm C every {plan.pickle_every}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="decides the training and the moment of the kill")
    parser.add_argument("--directory", type=Path, default=HERE.parent / "runs" / "demo")
    parser.add_argument("--started", type=float, default=time.time(), help="epoch seconds")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, help="seconds in all")
    args = parser.parse_args()
    args.directory.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(args.directory.parent).free
    if free < DISK_BYTES:
        raise SystemExit(f"the demo needs {DISK_BYTES >> 30} GiB of disk, {free >> 30} are free")
    return run(args, Console())


if __name__ == "__main__":
    raise SystemExit(main())
