"""`replay="latest"` from an older snapshot: no row that is whole on disk stays behind untold.

A run dies several times; what its newest snapshots held of other things is damaged, removed, or
kills whoever restores it. The rows are in the pool, in parts of snapshots, or in quarantine.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damaged_runs import flip
from processes import await_writers_end, committed, leftovers
from program import LANES, Training, tracking
from test_latest_rows import numbers, window

import pyengine

LATEST = {"replay": "latest"}
MARK = 1000


def live(
    send: Any,
    run_dir: str,
    end: int,
    snapshots: tuple[int, ...],
    mark: int,
    options: dict[str, Any],
) -> None:
    """Restore, insert rows until each lane has had `end`, and die; a snapshot after some rows."""
    training = Training()
    with pyengine.SnapshotEngine(run_dir, keep_last=9) as engine:
        training.track(engine)
        engine.restore(**options)
        for number in range(int(training.ring.total_count[-1]), end):
            training.insert(number + mark)
            if number in snapshots:
                engine.snapshot(number).wait(60)
        os.kill(os.getpid(), signal.SIGKILL)


def die_in_restore(send: Any, run_dir: str) -> None:
    training = Training()
    with pyengine.SnapshotEngine(run_dir, keep_last=9) as engine:
        training.track(engine)
        engine.restore(replay="latest", sanity=lambda: os.kill(os.getpid(), signal.SIGKILL))


Life = Callable[..., None]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def life(start: Any, token: str, run_dir: Path) -> Life:
    """Live until `end` rows a lane, with a snapshot after some, and die; the writer drains."""

    def one(
        end: int, *snapshots: int, mark: int = 0, restore: dict[str, Any] | None = None
    ) -> None:
        options = LATEST if restore is None else restore
        child = start(live, str(run_dir), end, snapshots, mark, options)
        assert child.join() == -signal.SIGKILL
        await_writers_end(token)

    return one


@pytest.fixture
def death_in_restore(start: Any, token: str, run_dir: Path) -> Callable[[], None]:
    def one() -> None:
        assert start(die_in_restore, str(run_dir)).join() == -signal.SIGKILL
        await_writers_end(token)

    return one


def snapshots(run_dir: Path) -> list[Path]:
    return [run_dir / "snapshots" / name for name in committed(run_dir)]


def damage(snapshot: Path) -> None:
    path = snapshot / "model" / "policy.safetensors"
    flip(path, path.stat().st_size // 2)


def restored(run_dir: Path, **options: Any) -> tuple[list[list[int]], pyengine.RestoreReport]:
    """Restore all rows; return the numbers in the rows of each lane."""
    with tracking(run_dir, keep_last=9) as (engine, training):
        report = engine.restore(replay="latest", **options)
        return numbers(training), report


@pytest.mark.parametrize("more", [0, 1])
def test_rows_in_the_newest_snapshots_own_part_outlive_it(
    life: Life, run_dir: Path, more: int
) -> None:
    life(20 + more, 9, 19)
    damage(snapshots(run_dir)[-1])
    found, report = restored(run_dir)
    assert report.global_step == 9
    assert found == window(20 + more)
    assert [note for note in report.notes if "lost" in note] == []


def test_rows_of_a_last_snapshot_at_the_close_outlive_it(run_dir: Path) -> None:
    with tracking(run_dir) as (engine, training):
        engine.restore()
        for number in range(20):
            training.insert(number)
            if number == 9:
                engine.snapshot(number).wait(60)
        engine.close(final=19)
    damage(snapshots(run_dir)[-1])
    found, report = restored(run_dir)
    assert (report.global_step, found) == (9, window(20))


def test_rows_of_a_snapshot_that_kills_whoever_restores_it_are_taken(
    life: Life, death_in_restore: Callable[[], None], run_dir: Path
) -> None:
    life(20, 9, 19)
    for _ in range(2):
        death_in_restore()
    found, report = restored(run_dir)
    assert (report.global_step, found) == (9, window(20))


@pytest.fixture
def three_lives(life: Life) -> None:
    """Three lines, each with a snapshot and rows after it, of 5, 9 and 16 rows; 20 at the end."""
    life(6, 4)
    life(12, 8)
    life(20, 15)


def remove_manifest(snapshot: Path) -> None:
    (snapshot / "manifest.json").unlink()


@pytest.mark.usefixtures("three_lives")
@pytest.mark.parametrize("lose", [damage, shutil.rmtree, remove_manifest])
def test_all_rows_are_there_after_two_snapshots_were_lost(
    run_dir: Path, lose: Callable[[Path], None]
) -> None:
    for snapshot in snapshots(run_dir)[-2:]:
        lose(snapshot)
    found, report = restored(run_dir)
    assert (report.global_step, found) == (4, window(20))


@pytest.mark.usefixtures("three_lives")
def test_all_rows_are_there_after_two_snapshots_were_given_up(
    death_in_restore: Callable[[], None], life: Life, run_dir: Path
) -> None:
    for _ in range(4):
        death_in_restore()
    with tracking(run_dir, keep_last=9) as (engine, training):
        assert engine.restore(replay="latest").global_step == 4
        assert numbers(training) == window(20)
        training.insert(20)
        engine.snapshot(20).wait(60)
        expected = training.digest()
    with tracking(run_dir, keep_last=9, seed=9) as (engine, again):
        engine.restore(eager=True)
        assert again.digest() == expected
    assert leftovers(run_dir) == []


@pytest.mark.usefixtures("three_lives")
def test_a_damaged_segment_that_snapshots_share_costs_its_own_lane_alone(run_dir: Path) -> None:
    (shared,) = snapshots(run_dir)[-1].glob("buffer/replay/*-0-0-8-*.seg")
    flip(shared, 20)
    found, report = restored(run_dir)
    assert report.global_step == 4
    assert found == [list(range(5)), *window(20)[1:]]
    (told,) = [note for note in report.notes if "came after" in note]
    assert "ring replay, lane 0: rows 5 to 19" in told
    assert "-0-0-8-" in told


def test_damage_in_one_lane_leaves_the_others_whole_and_is_not_taken_for_later_rows(
    life: Life, run_dir: Path
) -> None:
    life(12, 9)
    life(20, 15)
    life(30)
    (damaged, *_) = run_dir.glob("segments/replay/*-0-16-8-*.seg")
    flip(damaged, 4200)
    found, report = restored(run_dir)
    assert report.global_step == 15
    assert found == [list(range(20)), *window(30)[1:]]
    assert any("lane 0: rows 20 to 29" in note and damaged.name in note for note in report.notes)
    # What lay behind the gap is no row of the lines that follow.
    life(36, mark=MARK)
    found, report = restored(run_dir)
    new = [number + MARK for number in range(30, 36)]
    assert found == [[*range(20), *new], *[[*window(30)[1], *new][-32:]] * (LANES - 1)]
    assert not any("lost" in note for note in report.notes)


def test_rows_that_a_restore_left_behind_do_not_mix_with_those_that_came_instead(
    life: Life, run_dir: Path
) -> None:
    life(18, 9)
    life(20, 11, mark=MARK, restore={})
    damage(snapshots(run_dir)[-1])
    found, report = restored(run_dir)
    assert report.global_step == 9
    assert found == [[*range(10), *range(MARK + 10, MARK + 20)]] * LANES


def test_places_of_rows_that_were_dropped_do_not_come_back_empty(run_dir: Path) -> None:
    """The open segment was written full, with nothing where a damaged part's rows had been."""
    with tracking(run_dir, keep_last=9) as (engine, training):
        engine.restore()
        for number in range(22):
            training.insert(number)
            if number in (9, 19):
                engine.snapshot(number).wait(60)
    (part,) = snapshots(run_dir)[-1].glob("buffer/replay/*-part-*.seg")
    flip(part, 4200)
    with tracking(run_dir, keep_last=9, on_damage="drop") as (engine, training):
        engine.restore()
        assert training.ring.dropped != ()
        for number in range(20, 30):
            training.insert(number)
    found, report = restored(run_dir)
    assert report.global_step == 9
    assert any("came after" in note and part.name in note for note in report.notes)
    assert all(lane == list(range(len(lane))) and len(lane) >= 16 for lane in found)
    assert min(map(len, found)) < 30


def _replace(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def spoil(run_dir: Path) -> None:
        (record,) = (run_dir / "lines").iterdir()
        record.unlink()
        make(record)

    return spoil


SPOILT = {
    "no directory": lambda run_dir: shutil.rmtree(run_dir / "lines"),
    "removed": _replace(lambda path: None),
    "empty": _replace(lambda path: path.touch()),
    "huge": _replace(lambda path: (path.touch(), os.truncate(path, 1 << 36))),
    "a FIFO": _replace(os.mkfifo),
    "a link": _replace(lambda path: path.symlink_to("/etc/passwd")),
    "a directory": _replace(Path.mkdir),
}


@pytest.mark.parametrize("how", SPOILT)
def test_the_snapshots_own_line_needs_no_record(life: Life, run_dir: Path, how: str) -> None:
    life(20, 9)
    SPOILT[how](run_dir)
    found, report = restored(run_dir)
    assert found == window(20)
    is_told = any("lines" in note for note in report.notes)
    assert is_told == (how not in ("no directory", "removed"))


def test_a_line_without_a_record_is_followed_where_its_files_prove_what_it_continues(
    life: Life, run_dir: Path
) -> None:
    life(12, 9)
    life(20)
    shutil.rmtree(run_dir / "lines")
    found, _ = restored(run_dir)
    assert found == window(20)


def test_a_line_that_nothing_connects_is_told_of_and_keeps_its_files(
    life: Life, run_dir: Path
) -> None:
    life(12, 9)
    life(20, mark=MARK, restore={})
    shutil.rmtree(run_dir / "lines")
    pool = run_dir / "segments" / "replay"
    with tracking(run_dir, keep_last=9) as (engine, training):
        report = engine.restore(replay="latest")
        assert numbers(training) == window(12)
        assert any("nothing says which snapshot it grew from" in note for note in report.notes)
        training.insert(12)
        engine.snapshot(12).wait(60)
    assert any(header_has(path, 20) for path in pool.iterdir())


def header_has(path: Path, end: int) -> bool:
    """Whether a file of the pool has the row before `end`."""
    from pyengine.catalog.verify import read_segment_header

    header = read_segment_header(str(path.parent), path.name)
    return any(run.first_row + run.row_count == end for run in header.runs)


def own(send: Any, run_dir: str) -> None:
    """Own a run with rows that no file has, until killed."""
    training = Training()
    engine = pyengine.SnapshotEngine(run_dir)
    training.track(engine)
    engine.restore()
    for number in range(10):
        training.insert(number)
    engine.snapshot(9).wait(60)
    training.insert(10)
    send(("owned", None))
    signal.pause()


def test_rows_that_stay_with_a_trainer_taken_over_are_told(start: Any, run_dir: Path) -> None:
    owner = start(own, str(run_dir))
    owner.receive("owned")
    owner.signal(signal.SIGSTOP)
    with tracking(run_dir, takeover=True) as (engine, training):
        report = engine.restore(replay="latest")
        assert numbers(training) == window(10)
        assert any("generation 1 was taken over" in note for note in report.notes)
        training.insert(10)
        engine.snapshot(10).wait(60)
    with tracking(run_dir) as (engine, training):
        assert engine.restore(replay="latest").notes == ()


def add_and_die(send: Any, run_dir: str) -> None:
    """Restore, add rows, and die with a writer that has not begun yet."""
    from pyengine.engine.link import WriterLink

    training = Training()
    started: list[int] = []
    original = WriterLink.__init__

    def starts(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        started.append(self.pid)
        os.kill(self.pid, signal.SIGSTOP)

    WriterLink.__init__ = starts  # type: ignore[method-assign]
    engine = pyengine.SnapshotEngine(run_dir)
    training.track(engine)
    engine.restore(replay="latest")
    training.insert(10)
    os.kill(started[0], signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def test_rows_that_a_writer_never_saw_are_told(start: Any, life: Life, run_dir: Path) -> None:
    life(10, 9)
    child = start(add_and_die, str(run_dir))
    child.join()
    with tracking(run_dir) as (engine, training):
        report = engine.restore(replay="latest")
        assert numbers(training) == window(10)
        assert any("before it had begun" in note for note in report.notes)
        training.insert(10)
        engine.snapshot(10).wait(60)
    with tracking(run_dir) as (engine, training):
        assert engine.restore(replay="latest").notes == ()
