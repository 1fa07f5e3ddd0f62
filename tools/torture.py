"""Kill, fail and cut the power of small runs, tens of thousands of times, and look what comes back.

    python tools/torture.py [--states N] [--seed S] [--only WHAT] [--json]

Four sweeps over one scenario (tests/crash): `power` restores from what a power cut at any call may
leave of a recorded run; `kill` ends trainer, writer or both at a call; `error` makes a call fail,
once and for good; `disk` cuts the power of a real file system. A failure is printed with the word
by which `--only` repeats it exactly. Exit status 1 where anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from crash import lives, mending, power_loss  # the tests are no part of the package
from crash.faulty_lives import Case, Stage, error_cases, kill_cases, read_cases
from crash.lives import STEPS
from crash.loop_disk import KINDS, LoopDisk, cut_power, why_not
from crash.training import expected_digests

import pyengine

STATES = 100_000
STATES_PER_JOURNAL = 5_000
MENDING_EVERY = 4
"""One journal in so many, by its seed, is of a run that is mended, branched and cleared."""

KILLS = 1_600
ERRORS = 1_602
CUTS = 150
"""Cuts of each real file system."""

LINE_EVERY = 250
"""Where nobody watches the bars, a line comes after so many."""

SWEEPS = ("power", "kill", "error", "disk")


@dataclass
class Result:
    """What one sweep did. `wrong` holds (word for --only, what was wrong)."""

    sweep: str
    tried: int = 0
    gone_on: int = 0
    seconds: float = 0.0
    skipped: str = ""
    wrong: list[tuple[str, str]] = field(default_factory=list)


class Advance:
    """Shows how far a sweep has come, and tells at once what it found wrong."""

    def __init__(self, result: Result, total: int, progress: Progress) -> None:
        self._result = result
        self._progress = progress
        self._task = progress.add_task(result.sweep, total=total, wrong=0)
        self._told = 0

    def __call__(self, count: int) -> None:
        """Take note that the result counts so many more."""
        result, console = self._result, self._progress.console
        self._progress.update(self._task, advance=count, wrong=len(result.wrong))
        for word, what in result.wrong[self._told :]:
            console.print(f"[red]wrong[/red] --only {word}\n{what}", highlight=False)
        self._told = len(result.wrong)
        passed, before = result.tried // LINE_EVERY, (result.tried - count) // LINE_EVERY
        if not console.is_terminal and passed > before:
            console.print(f"{result.sweep}: {result.tried} tried, {len(result.wrong)} wrong")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sweeps that were asked for; return the exit status."""
    options = _parse(argv)
    # In forked processes everything is there then, and their starts cost milliseconds.
    logging.getLogger("pyengine").setLevel(logging.CRITICAL)
    expected_digests(options.seed, STEPS)
    assert pyengine.SnapshotEngine
    console = Console(stderr=True)
    console.print(f"seed {options.seed}, {options.workers} processes")
    results = list(_run(options, console)) if options.only is None else [_repeat(options)]
    _tell(results, options)
    return 1 if any(result.wrong for result in results) else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Prove that nothing is lost.")
    parser.add_argument("--states", type=int, default=STATES, help="states of the power sweep")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--errors", type=int, default=ERRORS, help="a sample; 10000 are all")
    parser.add_argument("--cuts", type=int, default=CUTS, help="cuts of each real file system")
    parser.add_argument("--sweeps", nargs="+", choices=SWEEPS, default=SWEEPS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--journals", default="build/torture", help="where journals are kept")
    parser.add_argument("--only", metavar="WHAT", help="repeat one failure, as it was printed")
    parser.add_argument("--json", action="store_true", help="results on stdout, as JSON")
    return parser.parse_args(argv)


def _run(options: argparse.Namespace, console: Console) -> Iterator[Result]:
    plans = {
        "power": (options.states, _power),
        "kill": (options.kills, _kill),
        "error": (options.errors, _error),
        "disk": (options.cuts * len(KINDS), _disk),
    }
    columns = (
        TextColumn("{task.description:6}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[wrong]} wrong"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        for sweep in options.sweeps:
            total, run = plans[sweep]
            begun = time.monotonic()
            result = Result(sweep)
            run(options, result, Advance(result, total, progress))
            result.seconds = round(time.monotonic() - begun, 1)
            yield result


def _power(options: argparse.Namespace, result: Result, advance: Advance) -> None:
    """Journal after journal, each with a seed of its own, its cuts shared out to the workers."""
    seed = options.seed
    while result.tried < options.states:
        path = _journal_path(options, seed)
        with tempfile.TemporaryDirectory(dir=power_loss.MEMORY) as directory:
            scenario = mending.play if seed % MENDING_EVERY == 0 else lives.play
            power_loss.record(seed, directory, scenario).save(path)
        count = min(STATES_PER_JOURNAL, options.states - result.tried)
        sweeps = [
            partial(_power_part, path, count, worker, options.workers)
            for worker in range(options.workers)
        ]
        wrong_before = len(result.wrong)
        for tally in _in_processes(options, sweeps):
            result.tried += tally.tried
            result.gone_on += tally.gone_on
            result.wrong += [(f"power/{word}", what) for word, what in tally.wrong]
            advance(tally.tried)
        if len(result.wrong) == wrong_before:
            os.unlink(path)
        seed += 1


def _power_part(path: str, count: int, worker: int, workers: int) -> power_loss.Tally:
    journal = power_loss.Journal.read(path)
    expected_digests(journal.seed, STEPS)
    return power_loss.sweep(journal, count, worker=worker, workers=workers)


def _kill(options: argparse.Namespace, result: Result, advance: Advance) -> None:
    with Stage(options.seed) as stage:
        cases = _some(kill_cases(stage), options.kills, options.seed)
        _faulty(options, "kill", stage.run, cases, result, advance)


def _error(options: argparse.Namespace, result: Result, advance: Advance) -> None:
    with Stage(options.seed) as stage:
        cases = _some([*error_cases(stage), *read_cases(stage)], options.errors, options.seed)
        _faulty(options, "error", stage.run, cases, result, advance)


def _faulty(
    options: argparse.Namespace,
    sweep: str,
    run: Callable[[Case], str | None],
    cases: list[Case],
    result: Result,
    advance: Advance,
) -> None:
    result.gone_on = len(cases)
    for case, wrong in _in_processes(options, [partial(_one, run, case) for case in cases]):
        result.tried += 1
        if wrong is not None:
            result.wrong.append((f"{sweep}/{case.text}", wrong))
        advance(1)


def _one(run: Callable[[Case], str | None], case: Case) -> tuple[Case, str | None]:
    return case, run(case)


def _disk(options: argparse.Namespace, result: Result, advance: Advance) -> None:
    """One case after the other: a mount, and its sync, are the whole machine's."""
    skipped = []
    with Stage(options.seed) as stage:
        cases = [case for case in kill_cases(stage) if case.victim == "both"]
        for kind in KINDS:
            reason = why_not(kind)
            if reason is not None:
                skipped.append(f"{kind}: {reason}")
                continue
            with LoopDisk(kind) as disk:
                for case in _some(cases, options.cuts, options.seed):
                    wrong = cut_power(stage, disk, case)
                    result.tried += 1
                    if wrong is not None:
                        result.wrong.append((f"disk-{kind}/{case.text}", wrong))
                    advance(1)
    result.gone_on = result.tried
    result.skipped = "; ".join(skipped)


def _some(cases: list[Case], count: int, seed: int) -> list[Case]:
    if count >= len(cases):
        return cases
    return random.Random(seed).sample(cases, count)


def _in_processes(options: argparse.Namespace, tasks: Sequence[Callable[[], Any]]) -> Iterator[Any]:
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        for future in as_completed([pool.submit(task) for task in tasks]):
            yield future.result()


def _journal_path(options: argparse.Namespace, seed: int) -> str:
    os.makedirs(options.journals, exist_ok=True)
    return os.path.join(options.journals, f"journal-{seed}")


def _repeat(options: argparse.Namespace) -> Result:
    sweep, _, word = options.only.partition("/")
    result = Result(sweep, tried=1, gone_on=1)
    if sweep == "power":
        seed, cut, index = map(int, word.split("/"))
        journal = power_loss.Journal.read(_journal_path(options, seed))
        tally = power_loss.sweep(journal, 1, only=(cut, index))
        result.wrong = [(f"power/{found}", what) for found, what in tally.wrong]
        _show(result)
        return result
    case = Case.parse(word)
    with Stage(case.seed) as stage:
        if sweep.startswith("disk-"):
            with LoopDisk(sweep.removeprefix("disk-")) as disk:
                wrong = cut_power(stage, disk, case)
        else:
            wrong = stage.run(case)
    result.wrong = [] if wrong is None else [(options.only, wrong)]
    _show(result)
    return result


def _show(result: Result) -> None:
    for _, what in result.wrong:
        print(what, file=sys.stderr)


def _tell(results: list[Result], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({"seed": options.seed, "sweeps": [asdict(r) for r in results]}, indent=1))
        return
    console = Console()
    console.print(f"{'sweep':6} {'tried':>8} {'gone on':>8} {'wrong':>6} {'seconds':>8}")
    for result in results:
        console.print(
            f"{result.sweep:6} {result.tried:8} {result.gone_on:8} {len(result.wrong):6} "
            f"{result.seconds:8.0f}  {result.skipped}",
            highlight=False,
        )


if __name__ == "__main__":
    raise SystemExit(main())
