"""A writer that dies anywhere is replaced by one that finishes its work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from trainer_side import expected, rows_of, trainer_on

from pyengine.catalog.run import open_run
from pyengine.catalog.verify import verify_snapshot
from pyengine.shm.states import SlotState, SnapshotState, StagingState

SEGMENT = "*/segments/replay/*"
STAGED = "*/snapshots/.tmp-*"

KILL_POINTS: dict[str, dict[str, Any]] = {
    "inside a segment": {"op": "pwrite", "path": SEGMENT, "nth": 2},
    "before a segment's fsync": {"op": "fsync", "path": SEGMENT},
    "after a segment's fsync": {"op": "fsync", "path": SEGMENT, "when": "after"},
    "before a segment's rename": {"op": "rename", "path": SEGMENT},
    "after a segment's rename": {"op": "rename", "path": SEGMENT, "when": "after", "nth": 3},
    "after the pool's fsync": {"op": "fsync", "path": "*/segments/replay", "when": "after"},
    "making the staged directory": {"op": "mkdir", "path": STAGED, "when": "after"},
    "inside a part": {"op": "pwrite", "path": "*/snapshots/*-part-*"},
    "after a link": {"op": "link", "path": STAGED, "when": "after"},
    "before a staged file's fsync": {"op": "fsync", "path": STAGED + "/model/*"},
    "before a staged directory's fsync": {"op": "fsync", "path": STAGED + "/buffer"},
    "before the directory's rename": {"op": "rename", "path": STAGED},
    "after the directory's rename": {"op": "rename", "path": STAGED, "when": "after"},
    "before the manifest's rename": {"op": "rename", "path": "*/manifest.json.tmp"},
    "after the manifest's rename": {
        "op": "rename",
        "path": "*/manifest.json.tmp",
        "when": "after",
    },
    "before latest": {"op": "symlink"},
    "while pruning": {"op": "rename", "path": "*/snapshots/.trash-*", "when": "after"},
    "while deleting": {"op": "rmdir", "path": "*/snapshots/.trash-*"},
}


@pytest.mark.parametrize("point", KILL_POINTS)
def test_the_staged_snapshot_is_committed_by_the_next_writer(tmp_path: Path, point: str) -> None:
    plan = [{"action": "kill", **KILL_POINTS[point]}]
    with trainer_on(tmp_path / "run", keep_last=1) as trainer:
        trainer.snapshot(1, files={"model/a": b"first"})
        trainer.wait_until(lambda: trainer.control.entries[0].staging[1] == StagingState.FREE)
        trainer.kill_writer()
        ring = trainer.add_ring()
        ring.add(90)
        windows = [ring.window(0)]
        staged = trainer.stage(2, files={"model/a": os.urandom(5000)})
        trainer.start_writer(plan)
        assert trainer.process.wait(60) == -9, trainer.log()
        trainer.channel.close()
        ring.add(20)
        trainer.start_writer()
        path = staged.committed()
        assert rows_of(path) == expected(ring, windows)
        assert verify_snapshot(str(path)) == []
        assert trainer.close_writer() == 0
        assert open_run(str(tmp_path / "run")).latest.global_step == 2
        assert list((tmp_path / "run").rglob(".*")) == []


def test_what_a_dead_writer_had_begun_goes_back(tmp_path: Path) -> None:
    plan = [{"op": "rename", "path": SEGMENT, "action": "stop"}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring()
        ring.add(2 * ring.segment_rows)
        trainer.wait_until(lambda: SlotState.WRITTEN in ring.states())
        trainer.kill_writer()
        trainer.start_writer()
        trainer.wait_until(lambda: ring.states().count(SlotState.PERSISTED) == 2)
        assert len(trainer.pool()) == 2


def test_a_commit_that_was_made_is_not_made_twice(tmp_path: Path) -> None:
    plan = [
        {"op": "fsync", "path": "*/snapshots/step-*", "nth": 2, "when": "after", "action": "kill"}
    ]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        staged = trainer.stage(1, files={"a": b"x"})
        assert trainer.process.wait(60) == -9
        assert staged.state == SnapshotState.COMMITTING
        trainer.channel.close()
        manifest = tmp_path / "run/snapshots" / staged.name / "manifest.json"
        before = manifest.stat().st_ino
        trainer.start_writer()
        staged.committed()
        assert manifest.stat().st_ino == before
        assert trainer.control.parent == staged.name


def test_rows_of_a_commit_that_a_dead_writer_made_are_not_written_again(tmp_path: Path) -> None:
    plan = [
        {"op": "fsync", "path": "*/snapshots/step-*", "nth": 2, "when": "after", "action": "kill"}
    ]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        trainer.add_ring().add(3)
        staged = trainer.stage(1)
        assert trainer.process.wait(60) == -9
        trainer.channel.close()
        trainer.start_writer()
        staged.committed()
        assert trainer.close_writer() == 0
        assert trainer.pool() == []


def test_a_descriptor_that_makes_no_sense_does_not_end_the_writer_after_a_commit(
    tmp_path: Path,
) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        trainer.kill_writer()
        trainer.add_ring().add(3)
        first, second = trainer.stage(1), trainer.stage(2)
        place = second.entry.descriptor
        trainer.stagings[second.entry.index].view(place.offset, 4)[:] = b"\xff\xff\xff\xff"
        trainer.start_writer()
        first.committed()
        assert second.wait() == SnapshotState.FAILED
        assert trainer.close_writer() == 0


def test_a_cancelled_snapshot_is_not_taken_up_again(tmp_path: Path) -> None:
    plan = [{"op": "mkdir", "path": STAGED, "when": "after", "action": "kill"}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        staged = trainer.stage(1, files={"a": b"x"})
        assert trainer.process.wait(60) == -9
        trainer.channel.close()
        assert staged.entry.cancel(staged.sequence)
        trainer.start_writer()
        assert staged.wait() == SnapshotState.CANCELLED
        assert trainer.close_writer() == 0
        assert os.listdir(tmp_path / "run/snapshots") == []


def test_two_staged_snapshots_survive_in_their_order(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        trainer.kill_writer()
        one = trainer.stage(1, files={"a": b"1"})
        two = trainer.stage(2, files={"a": b"2"})
        trainer.start_writer()
        one.committed()
        two.committed()
        run = open_run(str(tmp_path / "run"))
        assert [info.global_step for info in run.snapshots] == [1, 2]
        assert run.snapshots[1].parent == one.name


def test_a_writer_waits_for_its_stopped_predecessor(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        trainer.snapshot(1, files={"a": b"1"})
        old = trainer.process
        staged: Any = None
        try:
            trainer.start_writer()
            staged = trainer.stage(2, files={"a": b"2"})
            # The first writer holds the writer's byte, so the second has not begun anything: the
            # snapshot is the first one's, or nobody's while that one is gone.
        finally:
            old.kill()
            old.wait(60)
        staged.committed()
