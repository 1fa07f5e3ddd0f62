"""A small trainer for tests of `pyengine run`, started as a script; it ticks, and fails as told.

    python supervised_trainer.py RUN MODE

Says "step N" after the tick of each step, and "start N" after a restore.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pyengine
from pyengine import config

STEPS = 8


def kill_self(step: int) -> None:
    if step in (2, 5):
        engine.snapshot(step).wait(60)
        os.kill(os.getpid(), signal.SIGKILL)


def die_before_the_writer(step: int) -> None:
    """Once: stage a snapshot that a stopped writer cannot commit, say which that is, and die."""
    if step == 2 and not os.path.exists(marker):
        with open(marker, "w"):
            pass
        writer = engine.writer_pid
        assert writer is not None
        os.kill(writer, signal.SIGSTOP)
        engine.snapshot(step)
        print(f"writer {writer}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def hang_once(step: int) -> None:
    if step == 2 and not os.path.exists(marker):
        engine.snapshot(step).wait(60)
        with open(marker, "w"):
            pass
        threading.Event().wait()


def hang_beside_a_lively_fork(step: int) -> None:
    """Hang, while a forked child calls what a tick calls, and an exec'd child runs on in peace."""
    if step == 2 and not os.path.exists(marker):
        engine.snapshot(step).wait(60)
        with open(marker, "w"):
            pass
        if os.fork() == 0:
            while True:
                lifeline = engine._lifeline
                assert lifeline is not None
                lifeline.tick(step)
                threading.Event().wait(0.01)
        subprocess.Popen(["sleep", "1000"])
        threading.Event().wait()


def tick_silently(step: int) -> None:
    """Longer than any hang timeout of the tests in all, and never as long between two ticks."""
    threading.Event().wait(0.4)


def start_too_slowly(step: int | None) -> None:
    """Before the first tick take longer than any bound: until asked to end."""
    if step is None:
        with open(marker, "w"):
            pass
        while not engine.stop_requested:
            threading.Event().wait(0.02)


def tick_on_quietly(step: int) -> None:
    """For ever, with one word when that has begun."""
    if step == 3:
        print("ticking", flush=True)
    threading.Event().wait(0.02)


def save_on(step: int) -> None:
    """Save once, say so, and go on for ever."""
    if step == 2:
        engine.snapshot(step).wait(60)
        print("saved", flush=True)
    threading.Event().wait(0.02)


def no_space(step: int) -> None:
    if step == 2:
        raise pyengine.errors.NoSpaceError("the disk is full", needed_bytes=5, free_bytes=1)


def damage(step: int) -> None:
    if step == 2:
        raise pyengine.errors.DamageError("a flipped bit", path="x", offset=4)


def forever(step: int) -> None:
    threading.Event().wait(0.02)


def wait_for_word(step: int) -> None:
    """Between two ticks, wait until somebody makes the marker."""
    while step >= 2 and not os.path.exists(marker):
        threading.Event().wait(0.02)


def deaf(step: int) -> None:
    """Stop ticking after a while, whatever comes; say when a signal is no longer the same one."""
    if step == 2:
        print("deaf", flush=True)
        while not engine.stop_requested:
            threading.Event().wait(0.02)
        threading.Event().wait(config.SAME_REQUEST_SECONDS)
        print("still deaf", flush=True)
        while True:
            threading.Event().wait(1.0)


def fine(step: int) -> None:
    pass


MODES: dict[str, Callable[[int], None]] = {
    name: function for name, function in globals().items() if callable(function)
}

if __name__ == "__main__":
    run_dir, mode = sys.argv[1:3]
    marker = run_dir + ".marker"
    is_quiet = mode in ("tick_silently", "tick_on_quietly")
    steps = 10**9 if mode in ("forever", "save_on", "tick_on_quietly", "wait_for_word") else STEPS
    counters = {"steps": 0}
    engine = pyengine.SnapshotEngine(run_dir)
    engine.track(counters=counters)
    report = engine.restore()
    if not is_quiet:
        print(f"start {report.next_step} {counters['steps']}", flush=True)
    if mode == "start_too_slowly":
        start_too_slowly(None)
    for step in range(report.next_step, steps):
        counters["steps"] += 1
        engine.tick(step)
        if not is_quiet:
            print(f"step {step}", flush=True)
        MODES[mode](step)
    engine.close(final=steps - 1)
