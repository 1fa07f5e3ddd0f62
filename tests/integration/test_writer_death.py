"""A writer that dies or fails: replaced, retried, reported once, never in the way."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from processes import await_end, committed, leftovers
from program import Training

import pyengine
from pyengine import errors

WRITER = "*pyengine.writer*"


def armed(monkeypatch: pytest.MonkeyPatch, **rule: Any) -> None:
    monkeypatch.setenv("PYENGINE_FAULT_PLAN", json.dumps([{"process": WRITER, **rule}]))


def begin(run_dir: Path, **options: Any) -> tuple[pyengine.SnapshotEngine, Training]:
    engine = pyengine.SnapshotEngine(run_dir, **options)
    training = Training()
    training.track(engine)
    engine.restore()
    return engine, training


@pytest.mark.parametrize(
    "point",
    [
        {"op": "pwrite", "path": "*/segments/*"},
        {"op": "pwrite", "path": "*s0001*/model/*"},
        {"op": "rename", "path": "*s0001/manifest.json"},
        {"op": "rename", "path": "*s0001/manifest.json", "when": "after"},
    ],
)
def test_killed_while_persisting_it_is_replaced_and_the_snapshot_committed(
    monkeypatch: pytest.MonkeyPatch, token: str, tmp_path: Path, point: dict[str, Any]
) -> None:
    armed(monkeypatch, action="kill", **point)
    engine, training = begin(tmp_path / "run")
    first = engine.writer_pid
    monkeypatch.delenv("PYENGINE_FAULT_PLAN")
    with engine:
        for step in range(20):
            training.step(step)
        pending = engine.snapshot(19)
        assert pending.wait(60).global_step == 19
        assert engine.writer_pid != first
    assert len(committed(tmp_path / "run")) == 1
    assert leftovers(tmp_path / "run") == []


def test_a_writer_that_cannot_open_its_log_says_why(token: str, tmp_path: Path) -> None:
    engine, _training = begin(tmp_path / "run")
    engine.snapshot(0).wait(60)
    log = tmp_path / "run" / "generations" / "0001.log"
    log.unlink()
    log.mkdir()
    os.kill(engine.writer_pid, signal.SIGKILL)
    pending = engine.snapshot(1)
    with pytest.raises(errors.WriterDiedError, match=r"IsADirectoryError.*0001\.log"):
        pending.wait(60)
    engine.close(timeout=1)


def test_a_writer_killed_between_snapshots_is_replaced_at_a_tick(
    token: str, tmp_path: Path
) -> None:
    engine, training = begin(tmp_path / "run", every_steps=10, budget=None)
    with engine:
        first = engine.writer_pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await_end(first)
        training.step(0)
        engine.tick(0)
        assert engine.writer_pid not in (None, first)
        assert engine.snapshot(1).wait(60)


def test_sigterm_waits_until_a_starting_writer_can_answer_it(
    token: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        first = engine.writer_pid
        assert first is not None
        os.kill(first, signal.SIGTERM)  # the constructor does not wait for it
        training = Training()
        training.track(engine)
        engine.restore()
        await_end(first)
        with caplog.at_level(logging.WARNING, logger="pyengine"):
            engine.tick(0)
        assert "ended with exit status 0" in caplog.text


def test_one_failed_fsync_is_made_good_in_a_new_file(
    monkeypatch: pytest.MonkeyPatch, token: str, tmp_path: Path
) -> None:
    armed(monkeypatch, op="fsync", path="*/model/*", action="error", errno="EIO")
    engine, training = begin(tmp_path / "run")
    with engine:
        training.step(0)
        assert engine.snapshot(0).wait(60)
    assert leftovers(tmp_path / "run") == []


def test_an_error_for_good_is_raised_once_at_the_next_call(
    monkeypatch: pytest.MonkeyPatch, token: str, tmp_path: Path
) -> None:
    armed(monkeypatch, op="fsync", path="*s0001*/model/*", action="error", errno="EIO", times=0)
    engine, training = begin(tmp_path / "run")
    with engine:
        training.step(0)
        pending = engine.snapshot(0)
        while not pending.is_done:
            engine._session.wait(1.0)
        with pytest.raises(errors.SnapshotFailedError, match="s0001"):
            engine.tick(1)
        assert engine.tick(2) is None
        assert engine.snapshot(3).wait(60).global_step == 3
    assert committed(tmp_path / "run") == ["step-00000003.g0001.s0002"]


def fail_two(engine: pyengine.SnapshotEngine) -> list[pyengine.PendingSnapshot]:
    pendings = [engine.snapshot(step) for step in (0, 1)]
    session = engine._session
    assert session is not None
    while not all(pending.is_done for pending in pendings):
        session.wait(1.0)
    return pendings


def test_of_two_errors_one_is_raised_and_the_other_logged(
    monkeypatch: pytest.MonkeyPatch,
    token: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    armed(monkeypatch, op="fsync", path="*/model/*", action="error", errno="EIO", times=0)
    engine, _ = begin(tmp_path / "run")
    with engine:
        fail_two(engine)
        with pytest.raises(errors.SnapshotFailedError, match="s0001"):
            engine.tick(2)
        assert "s0002" in caplog.text


def test_a_close_after_failed_snapshots_still_takes_the_final_one_and_drains(
    monkeypatch: pytest.MonkeyPatch,
    token: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    armed(monkeypatch, op="fsync", path="*s000[12]*/model/*", action="error", errno="EIO", times=0)
    engine, training = begin(tmp_path / "run")
    fail_two(engine)
    training.step(3)
    with pytest.raises(errors.SnapshotFailedError, match="s0001"):
        engine.close(final=3)
    assert "s0002" in caplog.text
    assert committed(tmp_path / "run") == ["step-00000003.g0001.s0003"]
    assert "all done" in (tmp_path / "run/generations/0001.log").read_text()


def test_a_final_snapshot_that_cannot_be_taken_is_raised_after_the_drain(
    token: str, tmp_path: Path
) -> None:
    engine, training = begin(tmp_path / "run")
    training.step(0)
    engine.snapshot(0)
    training.counters["bad"] = lambda: None  # type: ignore[assignment]  # it is to be refused
    with pytest.raises(errors.CaptureError):
        engine.close(final=1)
    assert committed(tmp_path / "run") == ["step-00000000.g0001.s0001"]
    assert "all done" in (tmp_path / "run/generations/0001.log").read_text()


def test_a_close_in_a_signal_handler_says_that_there_is_no_final_snapshot(
    token: str, tmp_path: Path
) -> None:
    engine, training = begin(tmp_path / "run")
    training.step(0)
    before = signal.signal(signal.SIGUSR1, lambda *_: engine.close(final=0))
    try:
        with pytest.raises(errors.SnapshotError, match="signal handler"):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(errors.ClosedError):
        engine.tick(1)


def test_every_step_of_the_end_happens_whatever_the_others_raise(
    monkeypatch: pytest.MonkeyPatch, token: str, tmp_path: Path
) -> None:
    engine, training = begin(tmp_path / "run")

    def fail(*_: Any) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(engine._taker, "close", fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        engine.close()
    with pyengine.SnapshotEngine(tmp_path / "run") as again:
        again.track(replay=training.ring)


def test_stopped_by_a_signal_for_good_it_is_replaced_and_the_snapshot_committed(
    monkeypatch: pytest.MonkeyPatch,
    token: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("pyengine.engine.link.STOPPED_SECONDS", 0.3)
    engine, training = begin(tmp_path / "run")
    with engine:
        training.step(0)
        first = engine.snapshot(0).wait(60)
        writer = engine.writer_pid
        assert writer is not None
        os.kill(writer, signal.SIGSTOP)
        training.step(1)
        assert engine.snapshot(1).wait(60).name != first.name
        assert engine.writer_pid != writer
    assert f"the writer (pid {writer}) was stopped by a signal" in caplog.text
    await_end(writer)
    assert len(committed(tmp_path / "run")) == 2


def test_a_stopped_writer_is_replaced_where_snapshots_are_left_out_for_it(
    monkeypatch: pytest.MonkeyPatch, token: str, tmp_path: Path
) -> None:
    monkeypatch.setattr("pyengine.engine.link.STOPPED_SECONDS", 0.3)
    engine, training = begin(tmp_path / "run", every_steps=1, budget=None)
    with engine:
        training.step(0)
        engine.snapshot(0).wait(60)
        writer = engine.writer_pid
        assert writer is not None
        os.kill(writer, signal.SIGSTOP)
        taken = []
        step = 0
        while engine.writer_pid == writer:
            step += 1
            training.step(step)
            taken.append(engine.tick(step))
        assert None in taken, "it was left alone until a snapshot had to be left out"
        assert [pending.wait(60).global_step for pending in taken if pending][:2] == [1, 2]


def test_a_close_at_its_bound_names_the_snapshot_and_what_the_writer_does(
    token: str, tmp_path: Path
) -> None:
    engine, training = begin(tmp_path / "run")
    training.step(0)
    writer = engine.writer_pid
    assert writer is not None
    os.kill(writer, signal.SIGSTOP)
    try:
        engine.snapshot(0)
        with pytest.raises(errors.SnapshotFailedError) as caught:
            engine.close(timeout=0.2)
    finally:
        os.kill(writer, signal.SIGCONT)
    assert "step-00000000.g0001.s0001" in str(caught.value)
    assert "has not begun" in str(caught.value)
    assert f"the writer (pid {writer}) is stopped" in str(caught.value)
    await_end(writer)
    assert len(committed(tmp_path / "run")) == 1


def test_a_close_says_that_rows_are_not_on_disk(
    monkeypatch: pytest.MonkeyPatch,
    token: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    armed(monkeypatch, op="fsync", path="*/segments/*part*", action="error", times=0)
    engine, training = begin(tmp_path / "run")
    training.step(0)
    engine.close()
    assert "before every row was on disk" in caplog.text


def test_by_policy_an_error_is_only_logged(
    monkeypatch: pytest.MonkeyPatch,
    token: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    armed(monkeypatch, op="fsync", path="*s0001*/model/*", action="error", errno="ENOSPC", times=0)
    engine, training = begin(tmp_path / "run", on_error="warn")
    with caplog.at_level(logging.WARNING, logger="pyengine"), engine:
        training.step(0)
        pending = engine.snapshot(0)
        with pytest.raises(errors.NoSpaceError) as caught:
            pending.wait(60)
        assert caught.value.needed_bytes > 0
        other = engine.snapshot(1)
        assert other.wait(60)


def test_a_writer_that_cannot_live_is_given_up_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, token: str, tmp_path: Path
) -> None:
    armed(monkeypatch, op="mkdir", path="*/snapshots/.tmp-*", action="kill", times=0)
    engine, training = begin(tmp_path / "run")
    with engine:
        training.step(0)
        pending = engine.snapshot(0)
        with pytest.raises(errors.WriterDiedError):
            pending.wait(60)
        assert engine.writer_pid is None
        training.step(1)
        assert engine.tick(1) is None
        monkeypatch.delenv("PYENGINE_FAULT_PLAN")
        assert engine.snapshot(1).wait(60).global_step == 1
    assert committed(tmp_path / "run") == ["step-00000001.g0001.s0002"]


def test_a_stopped_writer_never_holds_the_loop_beyond_the_bound(
    monkeypatch: pytest.MonkeyPatch,
    token: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from program import new_ring

    ring = new_ring(rows_per_lane=32)
    ring.slot_wait = 0.2
    engine = pyengine.SnapshotEngine(tmp_path / "run")
    training = Training(ring=ring)
    training.track(engine)
    engine.restore()
    with engine:
        for step in range(40):
            training.step(step)
        assert engine.writer_pid is not None
        os.kill(engine.writer_pid, signal.SIGSTOP)
        try:
            pending = engine.snapshot(39)
            for step in range(40, 120):
                training.step(step)
            assert engine.tick(119) is None
            with pytest.raises(errors.SnapshotCancelledError):
                pending.wait(1)
            second = engine.snapshot(119)
            monkeypatch.setattr("pyengine.config.STAGING_WAIT_SECONDS", 0.1)
            with pytest.raises(errors.SnapshotBusyError):
                engine.snapshot(119)
        finally:
            os.kill(engine.writer_pid, signal.SIGCONT)
        assert second.wait(60).global_step == 119
    assert "given up" in caplog.text


def test_a_writer_killed_before_it_has_warmed_leaves_that_to_the_next(
    token: str, tmp_path: Path
) -> None:
    engine, training = begin(tmp_path / "run")
    with engine:
        for step in range(40):
            training.step(step)
        engine.snapshot(39).wait(60)
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        pid = engine.writer_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        engine.restore()
        storage = training.ring.storage
        blocks, mapped = storage.plan.layout.block_count, list(storage.paths)
        assert mapped
        os.kill(pid, signal.SIGKILL)
        step, until = 40, time.monotonic() + 60
        while engine._session.link._parcels.warming:  # until a writer has told that it did so
            assert time.monotonic() < until, "no writer has warmed the ring"
            step += 1
            engine.tick(step)
            time.sleep(0.01)
        assert engine.writer_pid != pid
        assert all(storage.control.is_verified(*place, 0, blocks) for place in mapped)
