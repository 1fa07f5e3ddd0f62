"""Ctrl-C anywhere: no row is half-written, no snapshot is torn, training can go on."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from processes import interrupted_at, leftovers
from program import LANES, Training, tracking

import pyengine
from pyengine.catalog.verify import verify_snapshot


def check_rows(training: Training, numbers: list[int]) -> None:
    """Every row is whole, and every lane holds exactly these inserts."""
    ring = training.ring
    rows = ring[ring.refs()]
    assert np.array_equal(rows["check"], rows["number"] * 3 + 1)
    expected = numbers[-32:]
    assert rows["number"].reshape(-1, LANES).T.tolist() == [expected] * LANES


def patient_training() -> Training:
    """One whose ring never gives up a snapshot, however slow the disk is just now."""
    training = Training()
    training.ring.slot_wait = 600.0
    return training


def restored_digest(snapshot: str, run_dir: Path) -> dict[str, str]:
    """Restore a copy of a snapshot into a new training and return its digest."""
    shutil.copytree(snapshot, run_dir / "snapshots" / Path(snapshot).name)
    with tracking(run_dir) as (engine, training):
        assert engine.restore()
        return training.digest()


def test_an_insert_interrupted_at_any_line_is_whole_or_absent(tmp_path: Path) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.restore()
        numbers: list[int] = []
        line, reached = 0, True
        while reached or len(numbers) < 50:
            line += 1
            number = len(numbers)
            before = int(training.ring.total_count[0])
            reached, _ = interrupted_at(line, lambda n=number: training.insert(n))
            if int(training.ring.total_count[0]) > before:
                numbers.append(number)
            check_rows(training, numbers)
            if not reached:
                line = 0
        info = engine.snapshot(1).wait(60)
    assert verify_snapshot(info.path) == []


def test_a_snapshot_interrupted_at_any_line_is_whole_or_absent(tmp_path: Path) -> None:
    training = patient_training()
    with pyengine.SnapshotEngine(tmp_path / "run", keep_last=500) as engine:
        training.track(engine)
        engine.restore()
        digests: dict[int, Any] = {}

        def interrupted_snapshot(line: int) -> bool:
            step = len(digests)
            training.step(step)
            digests[step] = training.digest()
            reached, _ = interrupted_at(line, lambda: engine.snapshot(step))
            training.insert(step)  # no lock is left held
            while engine._session.has_pending:  # else a slow disk decides which line is reached
                engine._session.wait(1.0)
            return reached

        end = next(line for line in itertools.count(1, 3) if not interrupted_snapshot(line))
        # Now its memory is there, which takes lines too. From the end of the shorter way back, over
        # the lines that follow the publication.
        places = (line for line in range(end, 0, -3) if interrupted_snapshot(line))
        assert len(list(itertools.islice(places, 20))) == 20
        last = len(digests)
        engine.snapshot(last).wait(60)
    assert end > 100
    run = pyengine.open_run(tmp_path / "run")
    assert run.problems == ()
    taken = {info.global_step: info for info in run.snapshots}
    assert last in taken
    assert all(verify_snapshot(info.path) == [] for info in taken.values())
    assert leftovers(tmp_path / "run") == []
    compared = sorted(set(taken) & set(digests))
    assert len(compared) > 5, "some were taken although their call was interrupted"
    for step in {*compared[:: -(-len(compared) // 8)], compared[-1]}:
        assert restored_digest(taken[step].path, tmp_path / f"again-{step}") == digests[step]


def test_a_storm_of_signals_tears_nothing(tmp_path: Path) -> None:
    """Real SIGINTs from another thread, at any moment, while training with snapshots."""
    gc.collect()  # of other tests, which no signal is to hit
    training = patient_training()
    interrupts = 0
    stop = threading.Event()

    def storm() -> None:
        while not stop.wait(0.003):
            os.kill(os.getpid(), signal.SIGINT)

    with pyengine.SnapshotEngine(tmp_path / "run", every_steps=3, budget=None) as engine:
        training.track(engine)
        engine.restore()
        step = 0

        def train() -> None:
            nonlocal step
            while step < 200 or interrupts < 100:
                step += 1
                training.insert(step)
                engine.tick(step)

        def interrupt(_: int, frame: FrameType | None) -> None:
            while frame is not None:  # not in the loop around it, whose end that would be
                if frame.f_code is train.__code__:
                    raise KeyboardInterrupt
                frame = frame.f_back

        before = signal.signal(signal.SIGINT, interrupt)
        thread = threading.Thread(target=storm)
        thread.start()
        try:
            while step < 200 or interrupts < 100:
                try:
                    train()
                except KeyboardInterrupt:
                    interrupts += 1
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            stop.set()
            thread.join()
            signal.signal(signal.SIGINT, before)
        rows = training.ring[training.ring.refs()]
        assert np.array_equal(rows["check"], rows["number"] * 3 + 1)
        per_lane = rows["number"].reshape(-1, LANES)
        assert (per_lane == per_lane[:, :1]).all(), "a row is in every lane or in none"
        info = engine.snapshot(step + 1).wait(60)
    assert verify_snapshot(info.path) == []
    for snapshot in pyengine.open_run(tmp_path / "run").snapshots:
        assert verify_snapshot(snapshot.path) == []


def test_an_assignment_interrupted_at_any_line_leaves_no_lock(tmp_path: Path) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.restore()
        training.insert(0)
        column = training.ring.column("priority")
        for line in itertools.count(1):
            reached, _ = interrupted_at(line, lambda: column.__setitem__(slice(0, 4), 0.5))
            training.insert(line)  # with the lock left held, this would raise
            if not reached:
                break
        assert line > 5
        assert column[0] == 0.5
        engine.snapshot(1).wait(60)


def test_a_handler_closes_the_engine_at_any_line_of_an_assignment(tmp_path: Path) -> None:
    for line in itertools.count(1, 5):
        training = Training()
        engine = pyengine.SnapshotEngine(tmp_path / f"run{line}")
        training.track(engine)
        engine.restore()
        training.insert(0)
        column = training.ring.column("priority")
        closed = []

        def close(*_: object, engine: Any = engine, closed: list[int] = closed) -> None:
            engine.snapshot(2)  # a wish, in a handler
            engine.close(timeout=30)
            closed.append(1)

        before = signal.signal(signal.SIGUSR1, close)
        try:
            place = interrupted_at(
                line,
                lambda column=column: column.__setitem__(slice(0, 4), 0.5),
                act=lambda: signal.raise_signal(signal.SIGUSR1),
            )
        finally:
            signal.signal(signal.SIGUSR1, before)
            engine.close()
        assert closed == [1] * place[0]
        assert column[0] == 0.5
        training.insert(1)
        training.ring.close()
        if not place[0]:
            break
    assert line > 20
