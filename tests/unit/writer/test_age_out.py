"""Pool files go when their rows left the window, and not while anything needs them."""

from __future__ import annotations

import os
from pathlib import Path

from trainer_side import expected, rows_of, trainer_on

from pyengine.catalog.verify import verify_snapshot
from pyengine.format import names
from pyengine.shm.states import SlotState


def first_rows(pool: list[str]) -> list[int]:
    parsed = [names.parse_pool_name(name) for name in pool]
    return sorted(name.first_row for name in parsed if name is not None)


def test_a_commit_removes_aged_out_files_and_snapshots_keep_their_links(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run", keep_last=5) as trainer:
        ring = trainer.add_ring(capacity=64)
        ring.add(64)
        before = trainer.snapshot(1)
        windows = [ring.window(0)]
        ring.add(64)
        trainer.snapshot(2)
        trainer.wait_until(lambda: min(first_rows(trainer.pool())) >= ring.control.tail(0))
        assert rows_of(before) == expected(ring, windows)
        assert verify_snapshot(str(before)) == []


def test_without_snapshots_the_pool_stays_bounded(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = trainer.add_ring(capacity=128)
        for _ in range(20):
            ring.add(64)
            trainer.wait_until(lambda: not {SlotState.SEALED, SlotState.WRITTEN} & {*ring.states()})
        window = 128 // ring.segment_rows
        trainer.wait_until(lambda: len(trainer.pool()) <= window + 8 + 2)


def test_files_that_are_not_ours_stay(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = trainer.add_ring(capacity=64)
        strangers = ["notes.txt", names.PoolName(0xABC, 0, 0, 16, 0).text, "00-0-0-0-0.seg"]
        (tmp_path / "run/segments/replay").mkdir()
        for name in strangers:
            (tmp_path / "run/segments/replay" / name).touch()
        ring.add(64)
        trainer.snapshot(1)
        ring.add(100)
        trainer.snapshot(2)
        trainer.wait_until(
            lambda: 0 not in first_rows([name for name in trainer.pool() if name not in strangers])
        )
        assert set(strangers) <= {*trainer.pool()}


def test_files_of_a_line_that_was_left_behind_go_with_the_next_commit(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = trainer.add_ring()
        ring.add(60)
        trainer.snapshot(1)
        assert trainer.close_writer() == 0
        old = trainer.line.text
    with trainer_on(tmp_path / "run") as trainer:
        ring = trainer.add_ring()
        ring.add(60)
        assert any(name.startswith(old) for name in os.listdir(tmp_path / "run/segments/replay"))
        path = trainer.snapshot(1)
        trainer.wait_until(lambda: not any(name.startswith(old) for name in trainer.pool()))
        assert rows_of(path) == expected(ring)
