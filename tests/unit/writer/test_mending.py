"""Pool files that somebody removed or cut are made again when a snapshot needs them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trainer_side import Ring, TrainerSide, expected, is_stopped, rows_of, trainer_on

from pyengine.catalog.verify import verify_snapshot
from pyengine.shm.states import SlotState, SnapshotState

ANEW = "*/snapshots/.tmp-*/buffer/replay/.tmp-*"
"""A segment that is written again, before it has its name."""

POOL = "*/segments/replay"
BACK = POOL + "/.tmp-*-link-*"
"""The same on its way back into the pool."""


def fill(trainer: TrainerSide, segments: int = 3) -> Ring:
    """Give the trainer a ring with some persisted segments and a few open rows."""
    ring = trainer.add_ring(capacity=64)
    ring.add(segments * ring.segment_rows + 5)
    trainer.wait_until(lambda: ring.states().count(SlotState.PERSISTED) == segments)
    return ring


def is_sound(trainer: TrainerSide, ring: Ring, snapshot: Path, windows: Any = None) -> bool:
    """Whether a snapshot is whole, and its segments are the pool's files."""
    pool = trainer.run_dir / "segments/replay"
    assert rows_of(snapshot) == expected(ring, windows)
    assert verify_snapshot(str(snapshot)) == []
    return all(
        os.path.samefile(pool / path.name.removeprefix("segment-"), path)
        for path in (snapshot / "buffer/replay").glob("segment-*")
        if "part" not in path.name
    )


def remove_first(pool: Path) -> None:
    min(pool.iterdir()).unlink()


def remove_all(pool: Path) -> None:
    for path in pool.iterdir():
        path.unlink()


def cut(pool: Path) -> None:
    os.truncate(min(pool.iterdir()), 5000)


def exchange(pool: Path) -> None:
    path = min(pool.iterdir())
    path.rename(pool.parent / "elsewhere")
    path.symlink_to(pool.parent / "elsewhere")


LOSSES: dict[str, Callable[[Path], None]] = {
    "one file": remove_first,
    "all files": remove_all,
    "the ring's directory": shutil.rmtree,
    "the directory of all rings": lambda pool: shutil.rmtree(pool.parent),
    "the end of a file": cut,
    "a file for a link": exchange,
}


@pytest.mark.parametrize("what", LOSSES)
def test_what_is_lost_is_written_again_from_memory(tmp_path: Path, what: str) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = fill(trainer)
        before = trainer.pool()
        LOSSES[what](tmp_path / "run/segments/replay")
        assert is_sound(trainer, ring, trainer.snapshot(1))
        assert trainer.pool() == before, "their names are those that the ring knows"
        (warning,) = trainer.texts("warning")
        assert before[0] in warning
        # The next one finds nothing amiss.
        ring.add(ring.segment_rows)
        assert is_sound(trainer, ring, trainer.snapshot(2))
        assert len(trainer.texts("warning")) == 1
        assert trainer.close_writer() == 0
        assert list((tmp_path / "run").rglob(".*")) == []


def test_former_snapshots_keep_their_files(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = fill(trainer)
        first, windows = trainer.snapshot(1), [ring.window(0)]
        shutil.rmtree(tmp_path / "run/segments")
        ring.add(8)
        second = trainer.snapshot(2)
        assert is_sound(trainer, ring, second)
        assert rows_of(first) == expected(ring, windows)
        assert verify_snapshot(str(first)) == []


def test_an_open_segment_seals_into_a_pool_that_was_removed(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = fill(trainer)
        shutil.rmtree(tmp_path / "run/segments")
        ring.add(ring.segment_rows)
        trainer.wait_until(lambda: ring.states().count(SlotState.PERSISTED) == 4)
        assert len(trainer.pool()) == 1
        assert is_sound(trainer, ring, trainer.snapshot(1))
        assert len(trainer.pool()) == 4


def test_a_run_that_was_taken_over_gets_nothing_back(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        fill(trainer)
        remove_all(tmp_path / "run/segments/replay")
        (tmp_path / "run/generations/0002").touch()
        staged = trainer.stage(1)
        assert staged.wait() == SnapshotState.FAILED
        assert (staged.entry.error or {})["type"] == "StaleGenerationError"
        assert trainer.pool() == []


ONCE: dict[str, dict[str, Any]] = {
    "its write": {"op": "pwrite", "path": ANEW},
    "its fsync": {"op": "fsync", "path": ANEW},
    "its link": {"op": "link", "path": BACK, "errno": "EIO"},
    "its name": {"op": "rename", "path": BACK},
    "the pool's fsync": {"op": "fsync", "path": POOL, "nth": 2},
}


@pytest.mark.parametrize("what", ONCE)
def test_a_failure_costs_a_repetition(tmp_path: Path, what: str) -> None:
    plan = [{"action": "error", **ONCE[what]}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = fill(trainer, 1)
        remove_all(tmp_path / "run/segments/replay")
        assert is_sound(trainer, ring, trainer.snapshot(1))
        assert "attempt 1" in trainer.log()
        assert trainer.close_writer() == 0
        assert list((tmp_path / "run").rglob(".*")) == []


def test_without_hard_links_it_becomes_a_copy(tmp_path: Path) -> None:
    plan = [{"op": "link", "action": "error", "errno": "EPERM", "times": 0}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = fill(trainer)
        before = trainer.pool()
        shutil.rmtree(tmp_path / "run/segments")
        path = trainer.snapshot(1)
        assert rows_of(path) == expected(ring)
        assert verify_snapshot(str(path)) == []
        assert trainer.pool() == before
        assert trainer.close_writer() == 0
        assert list((tmp_path / "run").rglob(".*")) == []


KILL_POINTS: dict[str, dict[str, Any]] = {
    "before its fsync": {"op": "fsync", "path": ANEW},
    "after its link": {"op": "link", "path": BACK, "when": "after"},
    "after its name": {"op": "rename", "path": BACK, "when": "after"},
}


@pytest.mark.parametrize("point", KILL_POINTS)
def test_a_writer_that_dies_at_it_is_replaced_by_one_that_ends_it(
    tmp_path: Path, point: str
) -> None:
    plan = [{"action": "kill", "nth": 2, **KILL_POINTS[point]}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = fill(trainer)
        shutil.rmtree(tmp_path / "run/segments")
        staged = trainer.stage(1)
        assert trainer.process.wait(60) == -9, trainer.log()
        trainer.channel.close()
        trainer.start_writer()
        assert is_sound(trainer, ring, staged.committed())
        assert trainer.close_writer() == 0
        assert list((tmp_path / "run").rglob(".*")) == []


@pytest.mark.parametrize("has_former", [True, False])
def test_a_slot_that_is_taken_meanwhile_is_not_the_source(tmp_path: Path, has_former: bool) -> None:
    """The trainer may free it at any moment: then a former snapshot has the rows, or nobody."""
    plan = [{"op": "fsync", "path": ANEW, "action": "stop"}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = fill(trainer)
        if has_former:
            trainer.snapshot(1)
        windows = [ring.window(0)]
        lost = min(trainer.pool())
        remove_first(tmp_path / "run/segments/replay")
        staged = trainer.stage(2)
        trainer.wait_until(lambda: is_stopped(trainer.process.pid))
        ring.add(64 + ring.segment_rows)
        trainer.process.send_signal(18)
        if has_former:
            assert rows_of(staged.committed()) == expected(ring, windows)
            assert verify_snapshot(str(staged.committed())) == []
            (warning,) = trainer.texts("warning")
            assert "1 from snapshots" in warning
        else:
            assert staged.wait() == SnapshotState.FAILED
            error = staged.entry.error or {}
            assert error["type"] == "SnapshotFailedError"
            assert lost in error["message"]
        # Those rows have left the window.
        assert is_sound(trainer, ring, trainer.snapshot(3))
        assert trainer.close_writer() == 0
        assert list((tmp_path / "run").rglob(".*")) == []


def test_memory_that_is_not_what_was_recorded_is_not_the_source(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = fill(trainer)
        first, windows = trainer.snapshot(1), [ring.window(0)]
        (slot,) = [slot for slot, key in ring.control.slots_in(SlotState.PERSISTED) if key == 0]
        image = ring.arena.view(ring.control.slot_offset(slot), ring.plan.layout.file_bytes)
        image[ring.plan.layout.fields[0].offset] ^= 1
        image.release()
        remove_all(tmp_path / "run/segments/replay")
        assert is_sound(trainer, ring, trainer.snapshot(2))
        (warning,) = trainer.texts("warning")
        assert "2 from memory, 1 from snapshots" in warning
        assert rows_of(first) == expected(ring, windows)


def test_a_snapshot_that_is_cancelled_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    plan = [{"op": "fsync", "path": ANEW, "action": "stop"}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = fill(trainer)
        before = trainer.pool()
        remove_all(tmp_path / "run/segments/replay")
        staged = trainer.stage(1)
        trainer.wait_until(lambda: is_stopped(trainer.process.pid))
        assert staged.entry.cancel(staged.sequence)
        trainer.process.send_signal(18)
        assert staged.wait() == SnapshotState.CANCELLED
        assert is_sound(trainer, ring, trainer.snapshot(2))
        assert trainer.pool() == before
        assert trainer.close_writer() == 0
        assert list((tmp_path / "run").rglob(".*")) == []
