"""Measure the figures: python -m benchmarks [--quick] [--only NAME] [--directory DIR]

A figure of our own runs in a process of its own; in a race each library has one that lives through
all races. Files lie below a temporary directory that is removed afterwards, whatever happens.
Results (table.md, table.json; JSON and PNG of each figure) go to benchmarks/results/. Exit code 1
where a bar was missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.contest import Pool
from benchmarks.figure import NAMES, RACES, Figure, Measured, NotEnough, Setting, load_figure
from benchmarks.host import describe_host
from benchmarks.plots import draw
from benchmarks.process import report_problems_only
from benchmarks.report import print_table, write_reports

RESULTS = Path(__file__).resolve().parent / "results"
PAIRS = 10
QUICK_PAIRS = 3
REMOVALS = 10


def main() -> int:
    args = _parse()
    if args.child:
        return _measure_here(args.child, args)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    console = Console()
    started = time.monotonic()
    args.results.mkdir(parents=True, exist_ok=True)
    host = describe_host(args.directory)
    outcomes: list[tuple[Figure, Measured]] = []
    with Pool() as pool:
        for name in args.only or NAMES:
            figure: Figure = load_figure(name).FIGURE
            begin = time.monotonic()
            with console.status(f"{name}: {figure.claim}"):
                measured = _measure(name, args, pool)
            outcomes.append((figure, measured))
            seconds = time.monotonic() - begin
            line = f"{name} ({seconds:.0f} s): {measured.text}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
            record = {"figure": name, "host": host, "quick": args.quick, **measured.to_json()}
            (args.results / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
            draw(figure, measured, args.results / f"{name}.png")
    title = "Figures" + (" (quick: small data, no result)" if args.quick else "")
    print_table(outcomes, host, console, title)
    write_reports(outcomes, host, args.results, title)
    console.print(f"{time.monotonic() - started:.0f} s; {args.results}/table.md")
    return 1 if any(measured.missed for _, measured in outcomes) else 0


def _measure(name: str, args: argparse.Namespace, pool: Pool) -> Measured:
    """Measure one figure; its files are gone when this returns or raises."""
    directory = Path(tempfile.mkdtemp(prefix=f"pyengine-{name}-", dir=args.directory)).resolve()
    try:
        if name in RACES:
            setting = Setting(directory, args.pairs, args.quick, pool)
            return _measure_or_skip(name, setting)
        return _measure_in_child(name, args, directory)
    finally:
        _remove(directory)


def _remove(directory: Path) -> None:
    """Remove what a figure leaves, though a process of it may still be ending."""
    for _ in range(REMOVALS):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(1)
    shutil.rmtree(directory)


def _measure_in_child(name: str, args: argparse.Namespace, directory: Path) -> Measured:
    command = [sys.executable, "-m", "benchmarks", "--child", name, "--directory", str(directory)]
    command += ["--pairs", str(args.pairs)] + (["--quick"] if args.quick else [])
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if child.returncode:
        raise SystemExit(f"{name} failed with exit code {child.returncode}")
    return Measured.from_json(json.loads(child.stdout.splitlines()[-1]))


def _measure_here(name: str, args: argparse.Namespace) -> int:
    report_problems_only()
    setting = Setting(directory=args.directory, pairs=args.pairs, quick=args.quick)
    print(json.dumps(_measure_or_skip(name, setting).to_json()))
    return 0


def _measure_or_skip(name: str, setting: Setting) -> Measured:
    try:
        measured: Measured = load_figure(name).measure(setting)
    except NotEnough as lack:
        print(f"{name}: skipped: {lack}", file=sys.stderr)
        return Measured.skipped(str(lack))
    return measured


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data: a check, not a result")
    parser.add_argument("--only", action="append", choices=NAMES, help="may be repeated")
    parser.add_argument("--pairs", type=int, help=f"interleaved pairs, {PAIRS} unless --quick")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="on the disk to measure")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--child", choices=NAMES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.pairs = args.pairs or (QUICK_PAIRS if args.quick else PAIRS)
    return args


if __name__ == "__main__":
    raise SystemExit(main())
