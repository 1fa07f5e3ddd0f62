"""A write or fsync that fails once is repeated from memory; twice, and somebody is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from trainer_side import expected, rows_of, trainer_on

from pyengine.catalog.claim import claim_run
from pyengine.catalog.verify import verify_snapshot
from pyengine.fs.locks import OfdLock
from pyengine.shm.states import SlotState, SnapshotState

SEGMENT = "*/segments/replay/*"
STAGED = "*/snapshots/.tmp-*"

ONCE: dict[str, dict[str, Any]] = {
    "the pool's directory": {"op": "mkdir", "path": "*/segments/replay"},
    "a segment's write": {"op": "pwrite", "path": SEGMENT},
    "a segment's fsync": {"op": "fsync", "path": SEGMENT},
    "a segment's rename": {"op": "rename", "path": SEGMENT},
    "the pool's fsync": {"op": "fsync", "path": "*/segments/replay", "nth": 2},
    "a part's write": {"op": "pwrite", "path": "*-part-*"},
    "a link": {"op": "link", "errno": "EIO"},
    "a staged file's fsync": {"op": "fsync", "path": STAGED + "/model/*"},
    "a staged directory's fsync": {"op": "fsync", "path": STAGED + "/model"},
    "the directory's rename": {"op": "rename", "path": STAGED},
    "the fsync after it": {"op": "fsync", "path": "*/snapshots"},
    "the manifest's fsync": {"op": "fsync", "path": "*/manifest.json.tmp"},
    "the manifest's rename": {"op": "rename", "path": "*/manifest.json.tmp"},
}


@pytest.mark.parametrize("what", ONCE)
def test_one_failure_costs_a_repetition_and_nothing_else(tmp_path: Path, what: str) -> None:
    plan = [{"action": "error", **ONCE[what]}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring()
        ring.add(60)
        path = trainer.snapshot(1, files={"model/a": os.urandom(5000)})
        assert rows_of(path) == expected(ring)
        assert verify_snapshot(str(path)) == []
        assert trainer.close_writer() == 0
        assert list((tmp_path / "run").rglob(".*")) == []


def test_an_fsync_is_never_repeated_on_the_same_file(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    plan = [
        {"op": "fsync", "path": SEGMENT, "action": "error"},
        {"op": "fsync", "path": SEGMENT, "action": "record", "file": str(log)},
    ]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring()
        ring.add(ring.segment_rows)
        trainer.wait_until(lambda: SlotState.PERSISTED in ring.states())
    # Only the successful call is on record, and it is that of another file than the one that failed
    (name,) = [line for line in log.read_text().splitlines() if "fsync" in line]
    assert "-1.seg" in name


def test_a_snapshot_that_cannot_be_written_fails_with_its_reason(tmp_path: Path) -> None:
    plan = [{"op": "fsync", "path": STAGED + "/model/*", "action": "error", "times": 0}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring()
        ring.add(20)
        staged = trainer.stage(1, files={"model/a": b"x"})
        assert staged.wait() == SnapshotState.FAILED
        error = staged.entry.error
        assert error is not None
        assert error["type"] == "SnapshotFailedError"
        assert "Input/output error" in error["message"]
        # The next one has its slot, and works.
        path = trainer.snapshot(2, files={"state/b": b"y"})
        assert rows_of(path) == expected(ring)
        assert trainer.close_writer() == 0
        assert list((tmp_path / "run").rglob(".*")) == []


def test_a_full_disk_is_told_in_numbers(tmp_path: Path) -> None:
    # Only this file: several are written at once, and the first that fails is told.
    model = {"path": STAGED + "/model/*", "action": "error", "errno": "ENOSPC", "times": 0}
    plan = [{"op": "write", **model}, {"op": "pwrite", **model}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        staged = trainer.stage(1, files={"model/a": b"x" * 1000})
        assert staged.wait() == SnapshotState.FAILED
        error = staged.entry.error
        assert error is not None
        assert error["type"] == "NoSpaceError"
        assert error["needed"] == 1000
        assert error["free"] > 0


FULL: dict[str, dict[str, Any]] = {
    "its directory": {"op": "mkdir", "path": STAGED},
    "a directory in it": {"op": "mkdir", "path": STAGED + "/model"},
    "a link": {"op": "link"},
    "the directory's rename": {"op": "rename", "path": STAGED},
    "the fsync after it": {"op": "fsync", "path": "*/snapshots"},
    "the manifest's rename": {"op": "rename", "path": "*/manifest.json.tmp"},
}


@pytest.mark.parametrize("what", FULL)
def test_a_disk_that_is_full_of_names_is_told_at_once(tmp_path: Path, what: str) -> None:
    plan = [{"action": "error", "errno": "ENOSPC", "times": 1, **FULL[what]}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring()
        ring.add(20)
        staged = trainer.stage(1, files={"model/a": b"x"})
        assert staged.wait() == SnapshotState.FAILED
        assert (staged.entry.error or {})["type"] == "NoSpaceError"
        assert rows_of(trainer.snapshot(2, files={"model/a": b"y"})) == expected(ring)
        assert trainer.close_writer() == 0
        assert list((tmp_path / "run").rglob(".*")) == []


def test_a_segment_that_cannot_be_written_fails_the_snapshot_and_stays(tmp_path: Path) -> None:
    plan = [{"op": "pwrite", "path": SEGMENT, "action": "error", "times": 4}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring()
        ring.add(ring.segment_rows + 1)
        # Twice when it sealed, or when the snapshot asked; told once.
        staged = trainer.stage(1)
        assert staged.wait() == SnapshotState.FAILED
        assert "Input/output error" in (staged.entry.error or {})["message"]
        trainer.wait_until(lambda: SlotState.PERSISTED in ring.states())
        assert len(trainer.texts("warning")) == 1
        assert rows_of(trainer.snapshot(2)) == expected(ring)


def test_an_end_with_segments_that_could_not_be_written_is_not_complete(tmp_path: Path) -> None:
    plan = [{"op": "pwrite", "path": SEGMENT, "action": "error", "times": 0}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring()
        ring.add(ring.segment_rows)
        trainer.wait_until(lambda: bool(trainer.texts("warning")))
        assert trainer.close_writer() == 1
        assert not trainer.wait_for("drained")["complete"]


def test_a_newer_claim_stops_the_writer_from_committing(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        trainer.snapshot(1, files={"a": b"1"})
        # A claim elsewhere that did not see our locks, as on a file system that keeps none.
        generations = tmp_path / "run/generations"
        (generations / "0002").touch()
        before = sorted(os.listdir(tmp_path / "run/snapshots"))
        staged = trainer.stage(2, files={"a": b"2"})
        assert staged.wait() == SnapshotState.FAILED
        error = staged.entry.error
        assert error is not None
        assert error["type"] == "StaleGenerationError"
        assert error["path"] == str(tmp_path / "run")
        assert sorted(os.listdir(tmp_path / "run/snapshots")) == before
        assert os.readlink(tmp_path / "run/latest").endswith(before[0])
    with claim_run(str(tmp_path / "run")) as claim:
        assert claim.generation == 3


def test_a_refused_hard_link_becomes_a_copy_with_one_warning(tmp_path: Path) -> None:
    plan = [{"op": "link", "action": "error", "errno": "EMLINK", "times": 0}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring()
        ring.add(60)
        for step in (1, 2):
            path = trainer.snapshot(step)
            assert rows_of(path) == expected(ring)
            assert verify_snapshot(str(path)) == []
        (warning,) = trainer.texts("warning")
        assert "hard links" in warning


def test_a_delayed_commit_lock_delays_only(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        trainer.wait_for("ready")
        with OfdLock.acquire(str(tmp_path / "run/lock"), 0, timeout=10):
            staged = trainer.stage(1, files={"a": b"x"})
            trainer.wait_until(lambda: any((tmp_path / "run/snapshots").glob(".tmp-*/a")))
            assert staged.state == SnapshotState.PENDING
        staged.committed()


def test_a_descriptor_that_makes_no_sense_fails_its_snapshot_alone(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        trainer.kill_writer()
        staged = trainer.stage(1, files={"a": b"x"})
        place = staged.entry.descriptor
        trainer.stagings[staged.entry.index].view(place.offset, 4)[:] = b"\xff\xff\xff\xff"
        trainer.start_writer()
        assert staged.wait() == SnapshotState.FAILED
        trainer.snapshot(2, files={"a": b"y"})
