"""A writer that dies or fails: replaced, retried, reported once, never in the way."""

from __future__ import annotations

import json
import logging
import os
import signal
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
