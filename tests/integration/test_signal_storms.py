"""Real signals at any moment, with every traceback kept, as a notebook keeps them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from program import Training

import pyengine

INTERRUPTS = 60


@contextmanager
def interval_timer(seconds: float) -> Iterator[None]:
    """Raise KeyboardInterrupt in this thread, again and again, while the block runs."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def interrupts_of(call: Callable[[int], object]) -> list[BaseException]:
    """Call `call(n)` under a timer until enough interrupts have come; return them."""
    kept: list[BaseException] = []
    calls = 0
    while len(kept) < INTERRUPTS:
        try:
            with interval_timer(0.0011 + 0.0001 * (len(kept) % 17)):
                while True:
                    calls += 1
                    call(calls)
        except KeyboardInterrupt as interrupt:
            kept.append(interrupt)
    return kept


def test_after_an_interrupted_tick_the_next_one_takes_snapshots(tmp_path: Path) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run", every_steps=1000, budget=None) as engine:
        training.track(engine)
        engine.restore()
        kept = interrupts_of(lambda n: engine.tick(0))
        for step in (1, 2):
            assert engine.snapshot(step).wait(60).global_step == step
        assert engine.tick(1500) is not None
        del kept


def test_after_an_interrupted_restore_the_next_one_succeeds(tmp_path: Path) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.restore()
        training.step(1)
        engine.snapshot(1).wait(60)
        digest = training.digest()
        kept = interrupts_of(lambda n: engine.restore())
        assert engine.restore().global_step == 1
        assert training.digest() == digest
        assert engine.snapshot(2).wait(60).global_step == 2
        del kept
