"""Real signals at any moment, with every traceback kept, as a notebook keeps them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from program import Training

import pyengine

INTERRUPTS = 30


def interrupts_of(call: Callable[[int], object]) -> list[BaseException]:
    """Call `call(n)` in a storm of signals until enough interrupts have come; return them.

    The handler raises once each time it is armed, so that no interrupt comes outside of the calls.
    """
    kept: list[BaseException] = []
    armed = [False]
    stop = threading.Event()

    def interrupt(*_: object) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    def storm() -> None:
        while not stop.wait(0.0013):
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=storm)
    thread.start()
    try:
        calls = 0
        while len(kept) < INTERRUPTS:
            try:
                while True:
                    calls += 1
                    armed[0] = True  # anew: a finalizer may have met the last one and gone on
                    call(calls)
            except KeyboardInterrupt as error:
                kept.append(error)
    finally:
        stop.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
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
