"""Show on a real environment that a SIGKILLed run continues bit for bit, at no visible cost.

Three arms train the same DQN on Pong (examples/dqn_atari.py), one after the other:

    A   with pyengine, never killed
    B   with pyengine, killed by SIGKILL at a random step after its ring has wrapped; then the same
        command is started again
    C   with torch.save and a pickle of the arrays, killed at the same step and started again

Three more, shorter, train the DQN of Stable-Baselines3 (examples/sb3_dqn_atari.py):

    D   the library alone, never killed; it saves nothing
    E   with SnapshotCallback, killed between two saves and started again
    F   with the library's CheckpointCallback, save_replay_buffer and load, killed at the same step

It does not claim that the agent learns: a few minutes are too short for that. The tables compare
A with B and D with E byte by byte and set the costs of C and F beside them.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from demo_picture import draw
from demo_plan import SB3_SHARE, Clock, OutOfTimeError, Plan, Sb3Plan, Shortener, Speed
from demo_process import Ticker, measure, play_arm, speed_of
from demo_report import print_loop, print_sb3
from demo_results import Comparison
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

HERE = Path(__file__).resolve().parent
FRAMES_BYTES = 2 * 4 * 84 * 84
ROW_BYTES = FRAMES_BYTES + 8 + 4 + 1 + 1
SB3_ROW_BYTES = FRAMES_BYTES + 8 + 4 + 4 + 4
BUDGET_SECONDS = 600
DISK_BYTES = 6 << 30


class Demo:
    """All arms, one after the other, below one directory and within one time."""

    def __init__(self, args: argparse.Namespace, console: Console, progress: Progress) -> None:
        seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 31)
        self.seed = seed
        self._random = random.Random(seed)
        self._directory: Path = args.directory
        self._clock = Clock(args.started, args.budget)
        self._console = console
        self._progress = progress

    def measure(self) -> Speed:
        """Return the speed of this machine."""
        speed = measure(self._directory, self._progress, self._clock)
        self._console.print(
            f"{speed.play * 1e3:.2f} ms per step, {speed.learn * 1e3:.1f} ms per update,"
            f" {speed.start:.1f} s per start on this machine"
        )
        return speed

    def play_loop(self, speed: Speed) -> Comparison:
        """Play A, B and C."""
        clock, full = self._clock, Plan()
        for_sb3 = min(SB3_SHARE * clock.left, Sb3Plan().seconds(speed))
        plan = full.fitted(speed, clock.left - for_sb3)
        self._announce(plan, full)
        directories = [self._directory / name for name in "ABC"]
        shorten = Shortener(plan, speed, clock, for_sb3)
        tick = Ticker(self._progress, directories[0], plan.steps, shorten)
        options = plan.options(self.seed % 10_000)
        a = play_arm("demo_arm.py", "engine", options, tick, directories[0], clock)
        if len(a.all_steps) < plan.steps:
            plan = replace(plan, steps=len(a.all_steps))
            wraps = "" if plan.steps > plan.capacity else ", before the ring is full"
            self._warn(f"the machine became slower: arms end after {plan.steps} steps{wraps}")
        killed_at = self._random.choice(plan.kill_range)
        options = plan.options(self.seed % 10_000)
        ticks = [Ticker(self._progress, directory, plan.steps) for directory in directories[1:]]
        b = play_arm("demo_arm.py", "engine", options, ticks[0], directories[1], clock, killed_at)
        options = replace(plan, save_every=plan.pickle_every).options(self.seed % 10_000)
        c = play_arm("demo_arm.py", "pickle", options, ticks[1], directories[2], clock, killed_at)
        shutil.rmtree(directories[2] / "run")
        return Comparison(a, b, c, killed_at, ROW_BYTES)

    def play_sb3(self, speed: Speed) -> Comparison:
        """Play D, E and F in what time is left."""
        plan = Sb3Plan().fitted(speed, self._clock.left)
        if plan is None:
            raise OutOfTimeError("too little time left for the arms with Stable-Baselines3")
        self._console.print(
            f"Stable-Baselines3: {plan.steps} steps an arm, {plan.capacity} rows, saves every"
            f" {plan.save_every} steps"
        )
        # Between two saves: a kill inside one of the library's own leaves files that do not match.
        first, last = plan.capacity // plan.save_every, plan.steps // plan.save_every - 1
        killed_at = plan.save_every * self._random.randint(first, last)
        killed_at += self._random.randrange(plan.save_every // 2, plan.save_every * 9 // 10)
        options = plan.options(self.seed % 10_000)
        arms = []
        for name, saves, kill in (
            ("D", "nothing", None), ("E", "callback", killed_at), ("F", "zip", killed_at)
        ):  # fmt: skip
            directory = self._directory / name
            tick = Ticker(self._progress, directory, plan.steps)
            arms.append(play_arm("demo_sb3.py", saves, options, tick, directory, self._clock, kill))
        shutil.rmtree(self._directory / "F" / "run")
        return Comparison(*arms, killed_at, SB3_ROW_BYTES)

    def _announce(self, plan: Plan, full: Plan) -> None:
        if plan != full:
            made_smaller = (
                (plan.steps, full.steps, "{} steps (of {})"),
                (plan.capacity, full.capacity, "a ring of {} rows (of {})"),
                (plan.train_every, full.train_every, "an update every {} steps (of every {})"),
            )
            less = [text.format(now, was) for now, was, text in made_smaller if now != was]
            self._warn(f"slower than the demo was made for: {', '.join(less)}")
        self._console.print(
            f"{plan.steps} steps an arm, ring of {plan.capacity} rows"
            f" ({plan.capacity * ROW_BYTES / 1e9:.1f} GB); saves every {plan.save_every} steps,"
            f" in arm C every {plan.pickle_every}"
        )

    def _warn(self, text: str) -> None:
        self._console.print(f"[yellow]{text}[/]")


def run(args: argparse.Namespace, console: Console) -> int:
    shutil.rmtree(args.directory, ignore_errors=True)
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    sb3, missing = None, ""
    with Progress(*columns, console=console) as progress:
        demo = Demo(args, console, progress)
        console.print(f"seed {demo.seed} (repeat this demo with --seed {demo.seed})")
        loop = demo.play_loop(demo.measure())
        try:
            sb3 = demo.play_sb3(speed_of(loop.others_way))
        except OutOfTimeError as error:
            missing = f"Stable-Baselines3 is not shown: {error}; --budget SECONDS gives more"
    print_loop(loop, demo.seed, console)
    if sb3 is not None:
        print_sb3(sb3, console)
    else:
        console.print(f"[yellow]{missing}[/]")
    picture = args.directory / "demo.png"
    draw(loop, sb3, picture)
    console.print(f"picture: {picture}; arm B's run: {args.directory / 'B' / 'run'}")
    console.print(f"{time.time() - args.started:.0f} s in all, installation included")
    return 0 if loop.is_identical and (sb3 is None or sb3.is_identical) else 1


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
    try:
        # Redirected output has no width of its own; the tables are not to be folded there.
        return run(args, Console(width=None if sys.stdout.isatty() else 130))
    except OutOfTimeError as error:
        raise SystemExit(
            f"stopped: {error}. The demo has {args.budget:.0f} s; try it on a quieter machine, or "
            "give it more: python tools/demo.py --budget 1800"
        ) from None


if __name__ == "__main__":
    raise SystemExit(main())
