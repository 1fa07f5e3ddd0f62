"""What tests of `pyengine run` share: its trainer, its log, and its output line by line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import marked_processes

from pyengine.supervisor.journal import read_events

TRAINER = str(Path(__file__).with_name("supervised_trainer.py"))
QUICK = ("--backoff", "0.05")
Supervise = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def supervise(token: str) -> Iterator[Supervise]:
    """Start `pyengine run OPTIONS -- COMMAND`; whatever is left at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: Any) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", "pyengine", "run", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()
    for pid in marked_processes(token):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def trainer(run_dir: Path, mode: str) -> list[str]:
    return ["--", sys.executable, TRAINER, str(run_dir), mode]


def events(run_dir: Path, kind: str | None = None) -> list[dict[str, Any]]:
    found = read_events(str(run_dir / "supervisor.jsonl"))
    return [event for event in found if kind in (None, event["event"])]


def await_line(child: subprocess.Popen[str], wanted: str) -> str:
    """Read its output until a line begins with the words; return that."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(wanted):
            return line
    raise AssertionError(f"the output ended before {wanted!r}")


def await_words(child: subprocess.Popen[str], wanted: str) -> None:
    """Read what it says to people until a line holds the words."""
    assert child.stderr is not None
    for line in child.stderr:
        if wanted in line:
            return
    raise AssertionError(f"it ended without a word of {wanted!r}")


def rest_of(child: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the output after the lines that were read; communicate() would lose some of it."""
    assert child.stdout is not None
    assert child.stderr is not None
    out, err = child.stdout.read(), child.stderr.read()
    child.wait(60)
    return out, err
