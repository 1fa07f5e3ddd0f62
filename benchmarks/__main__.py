"""Measure the figures: python -m benchmarks [--quick] [--only NAME] [--directory DIR]

Each figure runs in a process of its own below a temporary directory that is removed afterwards,
whatever happens. Results (JSON, PNG) go to benchmarks/results/. Exit code 1 where a bar was missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.figure import NAMES, Figure, Measured, Setting, load_figure
from benchmarks.host import describe_host
from benchmarks.plots import draw
from benchmarks.report import print_table

RESULTS = Path(__file__).resolve().parent / "results"
PAIRS = 12
QUICK_PAIRS = 3


def main() -> int:
    args = _parse()
    if args.child:
        return _measure_here(args.child, args)
    console = Console()
    args.results.mkdir(parents=True, exist_ok=True)
    host = describe_host(args.directory)
    outcomes: list[tuple[Figure, Measured]] = []
    for name in args.only or NAMES:
        figure: Figure = load_figure(name).FIGURE
        begin = time.monotonic()
        with console.status(f"{name}: {figure.claim}"):
            measured = _measure_in_child(name, args)
        outcomes.append((figure, measured))
        seconds = time.monotonic() - begin
        console.print(f"{name}: {measured.text} ({seconds:.0f} s)")
        record = {"figure": name, "host": host, "quick": args.quick, **measured.to_json()}
        (args.results / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
        draw(figure, measured, args.results / f"{name}.png")
    print_table(outcomes, host, console, quick=args.quick)
    return 0 if all(measured.passed for _, measured in outcomes) else 1


def _measure_in_child(name: str, args: argparse.Namespace) -> Measured:
    """Run one figure in a fresh process; its files are gone when this returns or raises."""
    directory = Path(tempfile.mkdtemp(prefix=f"pyengine-{name}-", dir=args.directory))
    command = [sys.executable, "-m", "benchmarks", "--child", name, "--directory", str(directory)]
    command += ["--pairs", str(args.pairs)] + (["--quick"] if args.quick else [])
    try:
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    finally:
        shutil.rmtree(directory)
    if child.returncode:
        raise SystemExit(f"{name} failed with exit code {child.returncode}")
    return Measured.from_json(json.loads(child.stdout.splitlines()[-1]))


def _measure_here(name: str, args: argparse.Namespace) -> int:
    setting = Setting(directory=args.directory, pairs=args.pairs, quick=args.quick)
    print(json.dumps(load_figure(name).measure(setting).to_json()))
    return 0


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
