"""Somebody holds the commit lock and hangs: the writer goes on, tells, and fails late."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trainer_side import trainer_on

from pyengine.catalog.claim import claim_run
from pyengine.errors import SnapshotFailedError
from pyengine.fs.locks import OfdLock
from pyengine.shm.states import SlotState, SnapshotState
from pyengine.writer import lock_wait


def test_segments_go_on_and_the_trainer_is_told_while_a_snapshot_waits(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = trainer.add_ring(capacity=256)
        trainer.snapshot(0)
        with OfdLock.acquire(str(trainer.run_dir / "lock"), timeout=60):
            waiting = trainer.stage(1)
            warning = trainer.wait_for("warning")["text"]
            assert f"pid {os.getpid()} " in warning
            assert "commit lock" in warning
            ring.add_all(2 * ring.segment_rows)
            trainer.wait_until(lambda: ring.states().count(SlotState.PERSISTED) == 2)
            assert waiting.state == SnapshotState.PENDING
            cancelled = waiting.entry.move_snapshot(
                waiting.sequence, SnapshotState.PENDING, SnapshotState.CANCELLED
            )
            assert cancelled
            assert waiting.wait() == SnapshotState.CANCELLED
            later = trainer.stage(2)
        assert later.wait() == SnapshotState.COMMITTED
        assert trainer.close_writer() == 0


def test_a_writer_that_waits_ends_within_the_grace(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        trainer.snapshot(0)
        with OfdLock.acquire(str(trainer.run_dir / "lock"), timeout=60):
            waiting = trainer.stage(1)
            trainer.wait_for("warning")
            assert trainer.close_writer(grace_seconds=0.1) == 1
        assert waiting.state == SnapshotState.PENDING


def test_a_writer_that_begins_while_the_lock_is_held_gets_to_work(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = trainer.add_ring(capacity=256)
        trainer.wait_for("ready")
        with OfdLock.acquire(str(trainer.run_dir / "lock"), timeout=60):
            trainer.kill_writer()
            trainer.messages.clear()
            trainer.start_writer()
            trainer.wait_for("ready")
            ring.add_all(ring.segment_rows)
            trainer.wait_until(lambda: ring.states().count(SlotState.PERSISTED) == 1)


def test_the_wait_ends_in_an_error_that_names_the_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_run(str(tmp_path / "run")).release()
    monkeypatch.setattr(lock_wait, "COMMIT_LOCK_SECONDS", 0.0)

    class Session:
        run_dir = str(tmp_path / "run")

        def warn(self, text: str, *, once: str | None = None) -> None:
            pytest.fail(text)

        def no_longer(self, once: str) -> None:
            pass

    with (
        OfdLock.acquire(f"{Session.run_dir}/lock", timeout=60),
        pytest.raises(SnapshotFailedError, match=f"held by pid {os.getpid()} "),
    ):
        next(lock_wait.lock_steps(Session()))
    with pytest.raises(StopIteration) as taken:
        next(lock_wait.lock_steps(Session()))
    assert taken.value.value.is_held
    taken.value.value.release()
