"""The trainer may take back a snapshot, and any slot that is not OPEN, at any moment."""

from __future__ import annotations

from pathlib import Path

from trainer_side import expected, is_stopped, rows_of, trainer_on

from pyengine.shm.states import SlotState, SnapshotState

SEGMENT = "*/segments/replay/*"


def test_a_cancelled_snapshot_leaves_nothing(tmp_path: Path) -> None:
    plan = [{"op": "fsync", "path": "*/snapshots/.tmp-*/a", "action": "stop"}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring()
        ring.add(40)
        staged = trainer.stage(1, files={"a": b"x"})
        trainer.wait_until(lambda: is_stopped(trainer.process.pid))
        assert staged.entry.cancel(staged.sequence)
        trainer.process.send_signal(18)
        assert staged.wait() == SnapshotState.CANCELLED
        assert trainer.wait_for("cancelled")["sequence"] == 1
        path = trainer.snapshot(2)
        assert rows_of(path) == expected(ring)
        assert trainer.close_writer() == 0
        assert list((tmp_path / "run").rglob(".*")) == []
        assert [p.name for p in (tmp_path / "run/snapshots").iterdir()] == [path.name]


def test_a_slot_freed_while_it_is_written_leaves_no_file(tmp_path: Path) -> None:
    plan = [{"op": "fsync", "path": SEGMENT, "action": "stop"}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring(capacity=64)
        ring.add(ring.segment_rows)
        trainer.wait_until(lambda: is_stopped(trainer.process.pid))
        # One lap: the segment leaves the window, its slot is taken for new rows.
        ring.add(64 + ring.segment_rows)
        trainer.process.send_signal(18)
        path = trainer.snapshot(1)
        assert rows_of(path) == expected(ring)
        assert trainer.close_writer() == 0
        firsts = {int(name.split("-")[2]) for name in trainer.pool() if "part" not in name}
        assert 0 not in firsts
        assert list((tmp_path / "run").rglob(".*")) == []


def test_a_slot_freed_between_written_and_persisted_leaves_no_file(tmp_path: Path) -> None:
    plan = [{"op": "rename", "path": SEGMENT, "action": "stop", "when": "after"}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring(capacity=64)
        ring.add(ring.segment_rows)
        trainer.wait_until(lambda: SlotState.WRITTEN in ring.states())
        trainer.wait_until(lambda: is_stopped(trainer.process.pid))
        ring.add(64 + ring.segment_rows)
        trainer.process.send_signal(18)
        assert rows_of(trainer.snapshot(1)) == expected(ring)
        firsts = {int(name.split("-")[2]) for name in trainer.pool()}
        assert 0 not in firsts


def test_a_pending_snapshot_keeps_its_rows_while_the_ring_goes_round(tmp_path: Path) -> None:
    plan = [{"op": "fsync", "path": SEGMENT, "action": "stop", "nth": 3}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring(capacity=256)
        ring.add(250)
        trainer.wait_until(lambda: is_stopped(trainer.process.pid))
        windows = [ring.window(0)]
        staged = trainer.stage(1)
        added = ring.add(400)
        assert added < 400  # what the cut holds in memory alone keeps its slots
        trainer.process.send_signal(18)
        assert rows_of(staged.committed()) == expected(ring, windows)
        assert ring.add(400) == 400
        assert rows_of(trainer.snapshot(2)) == expected(ring)


def test_persisted_rows_that_age_out_during_a_snapshot_are_in_it(tmp_path: Path) -> None:
    plan = [{"op": "mkdir", "path": "*/snapshots/.tmp-*", "action": "stop"}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring(capacity=256)
        ring.add(250)
        trainer.wait_until(lambda: SlotState.SEALED not in ring.states())
        trainer.wait_until(lambda: SlotState.PERSISTING not in ring.states())
        trainer.wait_until(lambda: SlotState.WRITTEN not in ring.states())
        windows = [ring.window(0)]
        staged = trainer.stage(1)
        trainer.wait_until(lambda: is_stopped(trainer.process.pid))
        ring.add(200)  # memory of persisted segments is given to new rows at once
        assert ring.control.tail(0) > 100
        trainer.process.send_signal(18)
        assert rows_of(staged.committed()) == expected(ring, windows)


def test_a_snapshot_of_a_ring_that_was_replaced_fails_and_the_new_ring_works(
    tmp_path: Path,
) -> None:
    plan = [{"op": "fsync", "path": SEGMENT, "action": "stop"}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        former = trainer.add_ring()
        former.add(5 * former.segment_rows)
        trainer.wait_until(lambda: is_stopped(trainer.process.pid))
        staged = trainer.stage(1)
        ring = trainer.add_ring()
        ring.add(40)
        trainer.process.send_signal(18)
        assert staged.wait() == SnapshotState.FAILED
        assert "replaced" in (staged.entry.error or {})["message"]
        assert rows_of(trainer.snapshot(2)) == expected(ring)
        former.close()
