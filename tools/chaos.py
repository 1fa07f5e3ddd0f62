"""Train a real agent while everything breaks, and see that it neither stops nor learns less.

    python tools/chaos.py             # or: make chaos

Double DQN on CartPole (chaos_trainer.py) under `pyengine run`, in several arms, two at a time:

    quiet    each seed without faults
    chaos    each seed with faults, drawn by seed: processes killed, frozen, hung; the disk full;
             files of the newest snapshot flipped, cut, deleted. Restores with replay="latest"
    exact    the first seed with other faults and replay="exact": its actions must be those of the
             quiet arm, bit for bit, to the end

Prints what each fault has cost, compares the curves of returns and draws a picture. The exit status
is 0 where every arm ended training and every promise held (chaos_verdict.py).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaos_faults import KINDS, draw_faults
from chaos_picture import draw
from chaos_report import as_json, print_report
from chaos_run import Outcome, Plan, play
from chaos_verdict import Verdict, judge
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

WORKERS = 2
WIDTH = 160
"""Of tables in a file."""


def plans_of(args: argparse.Namespace, seed: int) -> list[Plan]:
    """Return the arms, the longest first; the first agent's seed gets all faults at once."""
    agents = [seed % 10_000 + index for index in range(args.seeds)]
    counts = [args.faults, *[args.fewer_faults] * (args.seeds - 1)]
    chaos = [
        Plan(f"chaos {agent}", agent, args.steps, "latest",
             tuple(draw_faults(seed + index, count, args.steps, args.kinds)), args.hang_timeout)
        for index, (agent, count) in enumerate(zip(agents, counts, strict=True))
    ]  # fmt: skip
    quiet = [Plan(f"quiet {agent}", agent, args.steps, "latest") for agent in agents]
    exact_kinds = [kind for kind in args.kinds if KINDS[kind].is_exact]
    faults = draw_faults(seed - 1, args.fewer_faults, args.steps, exact_kinds)
    exact = Plan(
        f"exact {agents[0]}", agents[0], args.steps, "exact", tuple(faults), args.hang_timeout
    )
    return [chaos[0], *quiet, exact, *chaos[1:]]


def play_all(plans: list[Plan], directory: Path, console: Console) -> dict[str, Outcome]:
    """Play the arms, two at a time, under a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, TimeElapsedColumn(), console=console) as bar,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        running = {
            plan.name: pool.submit(
                play, plan, directory / plan.name.replace(" ", "-"), Steps(bar, plan)
            )
            for plan in plans
        }
        return {name: future.result() for name, future in running.items()}


class Steps:
    """Shows how far one arm has come."""

    def __init__(self, bar: Progress, plan: Plan) -> None:
        self._bar = bar
        self._task = bar.add_task(plan.name, total=plan.steps, start=False)

    def __call__(self, step: int) -> None:
        """Take note of the step that was made last; -1: none yet."""
        self._bar.start_task(self._task)
        self._bar.update(self._task, completed=max(0, step + 1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--directory", type=Path, default=Path("runs/chaos"), help="emptied first")
    add("--seed", type=int, help="of the faults and the first agent (default: at random)")
    add("--faults", type=int, default=50, help="in the first chaos arm (%(default)d)")
    add("--fewer-faults", type=int, default=8, metavar="N", help="in the others (%(default)d)")
    add("--seeds", type=int, default=3, help="agents (%(default)d)")
    add("--steps", type=int, default=24_000, help="of each arm (%(default)d)")
    add("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND",
        help=f"of faults, from: {', '.join(KINDS)} (default: all)")  # fmt: skip
    add("--hang-timeout", type=float, default=10.0, metavar="S", help="of the supervisor")
    add("--json", action="store_true", help="print one JSON object instead of tables")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1, 1 << 31)
    console = Console(stderr=args.json, width=None if sys.stdout.isatty() else WIDTH)
    console.print(f"seed {seed}: the same faults at the same steps again with --seed {seed}")
    shutil.rmtree(args.directory, ignore_errors=True)
    directory = args.directory.resolve()
    began = time.monotonic()
    outcomes = play_all(plans_of(args, seed), directory, Console(stderr=True))
    verdict: Verdict = judge(outcomes, seed, time.monotonic() - began)
    picture = directory / "chaos.png"
    draw(verdict, picture)
    if args.json:
        print(json.dumps(as_json(verdict), indent=1))
    else:
        print_report(verdict, console)
        console.print(f"picture: {picture}")
    return 0 if not verdict.broken else 1


if __name__ == "__main__":
    sys.exit(main())
