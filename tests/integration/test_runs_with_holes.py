"""on_damage="drop": a run goes on without the rows of damaged blocks, and so do its successors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import committed
from program import LANES, new_ring, tracking

import pyengine
from pyengine import errors
from pyengine.catalog.verify import verify_snapshot
from pyengine.format.buffer_header import DroppedRun
from pyengine.format.segment import iter_blocks, parse_header

R = 8
"""Rows of a segment of these rings: a block of a field has all of them."""


def spoil(run_dir: Path, segment: int, lane: int, block: int = 1) -> Path:
    """Change a byte of a full segment of the newest snapshot."""
    directory = run_dir / "snapshots" / committed(run_dir)[-1] / "buffer" / "replay"
    (file,) = directory.glob(f"segment-*-{lane}-{segment * R}-{R}-*.seg")
    flip(file, block)
    return file


def spoil_part(run_dir: Path, block: int) -> Path:
    directory = run_dir / "snapshots" / committed(run_dir)[-1] / "buffer" / "replay"
    (file,) = directory.glob("segment-*-part-*.seg")
    header = parse_header(file.read_bytes(), str(file))
    offset = next(start for number, start, _ in iter_blocks(header) if number == block)
    change(file, offset)
    return file


def flip(file: Path, block: int) -> None:
    with new_ring() as ring:
        layout = ring._plan.layout
    change(file, next(start for number, start, _ in iter_blocks(layout) if number == block))


def change(file: Path, offset: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        (byte,) = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))


def touch_all(ring: Any) -> None:
    while True:
        try:
            ring.gather(ring.refs())
            return
        except errors.DroppedRowError:
            continue


def check(ring: Any) -> None:
    batch = ring.gather(ring.refs())
    np.testing.assert_array_equal(batch["check"], batch["number"] * 3 + 1)
    np.testing.assert_array_equal(batch["number"], ring.refs() // LANES)


def test_a_run_goes_on_and_is_saved_and_restored_without_the_rows(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, _ = saved
    spoil(run_dir, 0, 1)
    spoil(run_dir, 1, 2)
    gone = (DroppedRun(1, 0, R), DroppedRun(2, R, R))
    with tracking(run_dir, on_damage="drop") as (engine, training):
        report = engine.restore()
        assert report.component("replay").rows == 20 * LANES
        touch_all(training.ring)
        assert training.ring.dropped == gone
        for step in range(report.next_step, 26):
            training.step(step)
        engine.snapshot(25).wait(60)
        kept = training.ring.refs().tolist()
        assert len(kept) == 26 * LANES - 2 * R
    newest = run_dir / "snapshots" / committed(run_dir)[-1]
    assert verify_snapshot(str(newest)) == []
    for options in ({}, {"eager": True}, {"replay_last": 26 * LANES}):
        with tracking(run_dir) as (engine, training):
            report = engine.restore(**options)
            assert report.component("replay").rows == len(kept)
            assert "16 rows are dropped" in report.component("replay").note
            assert training.ring.dropped == gone
            assert training.ring.refs().tolist() == kept
            check(training.ring)
            training.ring.sample(500)
    with tracking(run_dir) as (engine, training):
        engine.restore()
        for step in range(26, 60):
            training.step(step)
        assert training.ring.dropped == ()
        engine.snapshot(59).wait(60)
    with tracking(run_dir) as (engine, training):
        engine.restore()
        assert len(training.ring) == 32 * LANES
        check(training.ring)


def test_a_damaged_part_costs_the_open_rows_of_its_block(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, _ = saved
    file = spoil_part(run_dir, 1)
    with tracking(run_dir) as (engine, training), pytest.raises(errors.DamageError) as caught:
        engine.restore(fall_back=False)
    assert caught.value.path == str(file)
    with tracking(run_dir, on_damage="drop") as (engine, training):
        report = engine.restore()
        gone = tuple(DroppedRun(lane, 2 * R, 4) for lane in range(LANES))
        assert training.ring.dropped == gone
        assert report.component("replay").rows == 2 * R * LANES
        check(training.ring)
        for step in range(20, 30):
            training.step(step)
        check(training.ring)
        engine.snapshot(29).wait(60)
        kept = training.ring.refs().tolist()
    with tracking(run_dir) as (engine, training):
        engine.restore(eager=True)
        assert training.ring.refs().tolist() == kept
        assert training.ring.dropped == gone
        check(training.ring)


def test_holes_in_the_middle_of_files_are_several_extents_of_one_file(tmp_path: Path) -> None:
    """Rows of 16 KiB: a segment has 16, a block of `obs` 4."""
    run_dir = tmp_path / "run"

    def wide_ring() -> pyengine.ReplayBuffer:
        return pyengine.ReplayBuffer({"obs": ((16384,), "uint8"), "id": "int64"}, 64, seed=1)

    def add(ring: pyengine.ReplayBuffer, ids: range) -> None:
        for row in ids:
            ring.add(obs=np.full((1, 16384), row, np.uint8), id=[row])

    def check_wide(ring: pyengine.ReplayBuffer, ids: list[int]) -> None:
        batch = ring.gather(ring.refs())
        assert batch["id"].tolist() == ids
        assert batch["obs"].min(1).tolist() == batch["obs"].max(1).tolist() == ids

    with wide_ring() as ring, pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(replay=ring)
        add(ring, range(40))
        engine.snapshot(0).wait(60)
        layout = ring._plan.layout
    directory = run_dir / "snapshots" / committed(run_dir)[-1] / "buffer" / "replay"
    (full,) = directory.glob("segment-*-0-16-16-*.seg")
    (part,) = directory.glob("segment-*-part-*.seg")
    change(full, layout.fields[0].offset + 5 * 16384)  # row 21
    change(part, layout.fields[0].offset + 5 * 16384)  # row 37
    gone = (DroppedRun(0, 20, 4), DroppedRun(0, 36, 4))
    kept = [*range(20), *range(24, 36), *range(40, 50)]
    with wide_ring() as ring, pyengine.SnapshotEngine(run_dir, on_damage="drop") as engine:
        engine.track(replay=ring)
        engine.restore()
        touch_all(ring)
        add(ring, range(40, 50))
        assert ring.dropped == gone
        check_wide(ring, kept)
        engine.snapshot(1).wait(60)
    newest = run_dir / "snapshots" / committed(run_dir)[-1]
    header = json.loads((newest / "buffer" / "replay" / "buffer_header.json").read_text())
    runs = [(first, count, at) for _, first, count, _, at in header["extents"]]
    assert runs == [(0, 16, 0), (16, 4, 0), (24, 8, 8), (32, 4, 0), (40, 8, 8), (48, 2, 0)]
    assert len({extent[3] for extent in header["extents"]}) == 4
    assert verify_snapshot(str(newest)) == []
    for eager in (False, True):
        with wide_ring() as ring, pyengine.SnapshotEngine(run_dir) as engine:
            engine.track(replay=ring)
            engine.restore(eager=eager)
            assert ring.dropped == gone
            check_wide(ring, kept)
            assert ring.storage is not None
            assert len(ring.storage.mapped) == 3
            add(ring, range(50, 90))
            assert ring.dropped == (DroppedRun(0, 36, 4),)
            check_wide(ring, [*range(26, 36), *range(40, 90)])
    # More damage, to a row that was kept: that is told.
    (full,) = (newest / "buffer" / "replay").glob("segment-*-0-16-16-*.seg")
    change(full, layout.fields[0].offset)
    (problem,) = verify_snapshot(str(newest))
    assert problem.path == str(full)


def test_a_header_that_is_damaged_stays_an_error(saved: tuple[Path, dict[str, str]]) -> None:
    """Which rows a file holds is then not known: no rows can be given up for others."""
    run_dir, _ = saved
    directory = run_dir / "snapshots" / committed(run_dir)[-1] / "buffer" / "replay"
    file = sorted(directory.glob("segment-*-0-0-8-*.seg"))[0]
    change(file, 300)
    with tracking(run_dir, on_damage="drop") as (engine, _), pytest.raises(errors.DamageError):
        engine.restore(fall_back=False)


def test_inspect_lists_dropped_rows(saved: tuple[Path, dict[str, str]]) -> None:
    run_dir, _ = saved
    spoil(run_dir, 1, 3)
    with tracking(run_dir, on_damage="drop") as (engine, training):
        engine.restore()
        touch_all(training.ring)
        engine.snapshot(20).wait(60)
    newest = run_dir / "snapshots" / committed(run_dir)[-1]

    def inspect(*arguments: str) -> str:
        command = [sys.executable, "-m", "pyengine", "inspect", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    report = json.loads(inspect(str(run_dir), "--json"))
    rings = [snapshot["rings"]["replay"] for snapshot in report["snapshots"]]
    assert rings[0] == {"rows": 80, "dropped_rows": 0, "dropped": []}
    assert rings[1] == {"rows": 72, "dropped_rows": 8, "dropped": [[3, 8, 8]]}
    assert "8 rows were dropped" in inspect(str(run_dir))
    assert "rows 8 to 15 of lane 3" in inspect(str(newest))


def test_on_damage_is_one_of_two_words(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="on_damage: expected one of 'raise', 'drop'"):
        pyengine.SnapshotEngine(tmp_path / "run", on_damage="ignore")  # type: ignore[arg-type]


def test_rows_that_were_dropped_do_not_come_back_empty_with_later_ones(
    saved: tuple[Path, dict[str, str]],
) -> None:
    """The open segment was written full, with nothing where the dropped rows had been."""
    run_dir, _ = saved
    file = spoil_part(run_dir, 1)
    with tracking(run_dir, on_damage="drop") as (engine, training):
        engine.restore()
        for step in range(20, 30):
            training.insert(step)
    with tracking(run_dir, on_damage="drop") as (engine, training):
        report = engine.restore(replay="latest")
        assert f"{10 * LANES} rows added after the snapshot" in report.component("replay").note
        gone = tuple(DroppedRun(lane, 2 * R, 4) for lane in range(LANES))
        assert training.ring.dropped == gone
        kept = [row for row in range(30) if not 2 * R <= row < 2 * R + 4]
        assert (training.ring.refs() // LANES).tolist() == np.repeat(kept, LANES).tolist()
        check(training.ring)
    with tracking(run_dir) as (engine, training), pytest.raises(errors.DamageError) as caught:
        engine.restore(replay="latest", fall_back=False)
    assert caught.value.path == str(file)
