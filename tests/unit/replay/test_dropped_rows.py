"""Damage found at the first touch: an error each time, or rows that leave the ring for good."""

from __future__ import annotations

import logging
import os
import threading

import numpy as np
import pytest
from mapped_rings import (
    block_place,
    flip,
    forget_pages,
    mapped_ring,
    new_ring,
    path_of,
    rows,
    saved,
)
from saved_rings import save

from pyengine.errors import DamageError, DroppedRowError, EmptyRingError, UnknownRefError
from pyengine.format.buffer_header import DroppedRun
from pyengine.format.schema import START_FIELD
from pyengine.replay import damage

R = 512
"""Rows of a segment of these rings; a block of `obs` has 128 of them, one of `id` all."""

BLOCK = 128


def spoil(ring, segment, field="obs", index=0, lane=0):
    """Change one byte of a block; return the path and the block's offset."""
    path, (offset, _) = path_of(ring, segment, lane), block_place(ring, field, index)
    flip(path, offset + 7)
    return str(path), offset


def touch_all(ring):
    """Gather every row until all that are left are whole."""
    while True:
        try:
            ring.gather(ring.refs())
            return
        except DroppedRowError:
            continue


def test_raise_is_the_default_and_an_error_at_each_touch(tmp_path):
    with mapped_ring(tmp_path) as ring:
        path, offset = spoil(ring, 2, "obs", 1)
        for _ in range(2):
            with pytest.raises(DamageError) as caught:
                ring.gather([2 * R + BLOCK])
            assert (caught.value.path, caught.value.offset) == (path, offset)
            assert caught.value.expected != caught.value.got
        assert len(ring) == 4096
        assert ring.dropped == ()
        assert ring.gather([2 * R])["id"].tolist() == [2 * R]


def test_dropped_rows_leave_len_refs_samples_columns_and_updates(tmp_path):
    with mapped_ring(tmp_path, on_damage="drop") as ring:
        spoil(ring, 2, "obs", 1)
        first = 2 * R + BLOCK
        gone = range(first, first + BLOCK)
        kept = [*range(first), *range(first + BLOCK, 4096)]
        with pytest.raises(DroppedRowError, match="dropped"):
            ring.gather([0, first + 5])
        assert ring.dropped == (DroppedRun(0, first, BLOCK),)
        assert len(ring) == len(kept)
        assert ring.refs().tolist() == kept
        assert ring.gather(ring.refs())["id"].tolist() == kept
        drawn = ring.sample(50_000)
        assert set(drawn.indices.tolist()) == set(kept)
        np.testing.assert_array_equal(drawn["id"], drawn.indices)
        np.testing.assert_array_equal(drawn["obs"], rows(drawn.indices)["obs"])
        column = np.asarray(ring.column("id"))
        assert not column[first : first + BLOCK].any()
        assert column[kept].tolist() == kept
        assert ring.refs_at([first - 1, first, first + BLOCK]).tolist() == [
            first - 1,
            -1,
            kept[first],
        ]
        assert ring.update([first - 1, first, first + 1], mark=3) == 2
        assert ring.lost_updates == 2
        assert ring.gather([first - 1])["mark"].tolist() == [3]
        assert ring.total_count == 4096
        assert (first + BLOCK) in ring.breaks().tolist()
        assert not set(gone) & set(ring.breaks().tolist())


def test_a_sample_that_meets_damage_is_drawn_anew_of_what_is_left(tmp_path):
    with mapped_ring(tmp_path, on_damage="drop") as ring:
        for segment in range(8):
            spoil(ring, segment, "obs", 3)
        out = ring.sample(4096)
        again = ring.sample(4096, out=out)
        assert not ((out.indices % R) // BLOCK == 3).any()
        np.testing.assert_array_equal(again["id"], again.indices)
        assert len(ring) == 4096 - 8 * BLOCK
        assert [run.row_count for run in ring.dropped] == [BLOCK] * 8


def test_while_nothing_is_dropped_no_draw_changes(tmp_path):
    with saved(tmp_path, 4096) as files, new_ring() as one, new_ring() as other:
        files.install(one, on_damage="drop")
        files.install(other)
        for _ in range(3):
            assert one.sample(100).indices.tolist() == other.sample(100).indices.tolist()


def test_each_valid_row_is_drawn_as_if_the_valid_rows_were_all(tmp_path):
    """The k-th valid row stands for the number k, which a ring of so many rows draws."""
    with new_ring(8192, num_envs=2) as source, new_ring(8192, num_envs=2) as ring:
        for lane in range(2):
            source.extend(**rows(np.arange(3000)), lane=lane)
        save(source, tmp_path).install(ring, on_damage="drop")
        for lane, segment, index in [(0, 0, 0), (0, 0, 2), (0, 3, 3), (1, 1, 1), (1, 2, 0)]:
            spoil(ring, segment, "obs", index, lane)
        touch_all(ring)
        refs = ring.refs()
        valid = np.concatenate([refs[refs % 2 == 0], refs[refs % 2 == 1]])
        assert len(valid) == 6000 - 5 * BLOCK
        with new_ring(8192) as whole:
            whole.extend(**rows(np.arange(len(valid))))
            whole.storage.core.seed_state = ring.storage.core.seed_state
            drawn = ring.sample(20_000).indices
            np.testing.assert_array_equal(drawn, valid[whole.sample(20_000).indices])


def test_dropped_rows_age_out_like_any_other(tmp_path):
    with mapped_ring(tmp_path, on_damage="drop") as ring:
        spoil(ring, 0, "obs", 1)
        with pytest.raises(DroppedRowError):
            ring.gather([BLOCK])
        ring.extend(**rows(np.arange(4096, 4096 + BLOCK + 100)))
        assert ring.dropped == (DroppedRun(0, BLOCK + 100, BLOCK - 100),)
        assert len(ring) == 4096 - (BLOCK - 100)
        assert ring.refs()[0] == 2 * BLOCK
        with pytest.raises(UnknownRefError):
            ring.gather([BLOCK])
        ring.extend(**rows(np.arange(4096 + BLOCK + 100, 4096 + 2 * R)))
        assert ring.dropped == ()
        assert len(ring) == 4096
        assert ring.gather(ring.refs())["id"].tolist() == list(range(2 * R, 4096 + 2 * R))


def test_a_block_of_a_narrow_field_takes_all_its_rows_along(tmp_path):
    with mapped_ring(tmp_path, on_damage="drop") as ring:
        spoil(ring, 1, "id")
        spoil(ring, 1, "obs", 2)
        with pytest.raises(DroppedRowError):
            ring.gather([R])
        assert ring.dropped == (DroppedRun(0, R, R),)
        assert np.asarray(ring.column("obs")).any()


def test_a_ring_whose_rows_were_all_dropped_is_empty_and_takes_rows_again(tmp_path):
    with mapped_ring(tmp_path, on_damage="drop") as ring:
        for segment in range(8):
            spoil(ring, segment, "id")
        with pytest.raises(EmptyRingError):
            ring.sample(4096)
        assert len(ring) == 0
        ring.add(**rows([4096]))
        assert ring.sample(3).indices.tolist() == [4096] * 3


def test_each_block_is_told_of_once_with_path_and_rows(tmp_path, caplog):
    with mapped_ring(tmp_path, on_damage="drop") as ring:
        path, offset = spoil(ring, 4, "obs", 2)
        with caplog.at_level(logging.WARNING, "pyengine"):
            threads = [threading.Thread(target=ring.sample, args=(20_000,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        (record,) = caplog.records
        first = 4 * R + 2 * BLOCK
        text = record.getMessage()
        assert record.levelname == "ERROR"
        assert all(part in text for part in (path, f"byte {offset}", f"rows {first} to"))


def test_a_cut_file_loses_the_rows_that_were_cut(tmp_path):
    """Verified before or not: what faults is given up, what is left of the file stays."""
    with mapped_ring(tmp_path, on_damage="drop") as ring:
        ring.gather(np.arange(0, 4096, 2))
        path, (offset, _) = path_of(ring, 5), block_place(ring, "obs", 2)
        forget_pages(path)
        whole = path.read_bytes()
        path.write_bytes(whole[:offset])
        with pytest.raises(DroppedRowError):
            ring.gather(np.arange(5 * R, 6 * R))
        drawn = ring.sample(20_000)
        np.testing.assert_array_equal(drawn["obs"], rows(drawn.indices)["obs"])
        assert set(drawn.indices // R) >= {0, 1, 2, 3, 4, 6, 7}
        gone = {run.first_row + i for run in ring.dropped for i in range(run.row_count)}
        assert set(range(5 * R + 2 * BLOCK, 6 * R)) <= gone <= set(range(5 * R, 6 * R))


def test_what_is_wrong_only_once_is_no_damage(tmp_path, monkeypatch, caplog):
    with saved(tmp_path, 4096) as files, new_ring() as ring, new_ring() as other:
        files.install(ring, on_damage="drop")
        files.install(other)
        expected = other.sample(3000).indices.tolist()
        path, offset = spoil(ring, 1, "obs", 1)
        mended = []

        def mend(file):
            assert file == path
            mended.append(file)
            if len(mended) == 1:
                flip(path_of(ring, 1), offset + 7)

        monkeypatch.setattr(damage, "_forget_file", mend)
        with caplog.at_level(logging.WARNING, "pyengine"):
            assert ring.sample(3000).indices.tolist() == expected
        assert len(mended) == 1
        assert ring.dropped == ()
        assert "wrong when it was read first" in caplog.text


def test_the_second_look_is_at_the_disk(tmp_path, monkeypatch):
    """Nothing of the file is in the page cache then, whatever was read of it before."""
    with mapped_ring(tmp_path) as ring:
        path, offset = spoil(ring, 1, "obs", 1)
        forget_pages(path)
        ring.gather([R, R + 3 * BLOCK])
        forget, cached = damage._forget_file, []

        def watch(file):
            fd = os.open(file, os.O_RDONLY)
            try:
                cached.append(is_cached(fd, offset))
                forget(file)
                cached.append(is_cached(fd, offset) or is_cached(fd, offset - BLOCK * 512))
            finally:
                os.close(fd)

        monkeypatch.setattr(damage, "_forget_file", watch)
        with pytest.raises(DamageError):
            ring.gather([R + BLOCK])
        if cached == [True, True] and not forgettable(tmp_path):
            pytest.skip("this file system keeps files in memory alone")
        assert cached == [True, False]


def is_cached(fd, offset):
    try:
        return os.preadv(fd, [bytearray(4096)], offset, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False


def forgettable(directory):
    probe = directory / "probe"
    probe.write_bytes(bytes(4096))
    forget_pages(probe)
    with probe.open("rb") as file:
        return not is_cached(file.fileno(), 0)


def test_a_damaged_open_row_is_an_error_of_the_restore_or_dropped(tmp_path):
    with saved(tmp_path, 4 * R + 300) as files, new_ring() as ring:
        part = next(file for file in files.files.values() if file.record is None)
        layout = ring._plan.layout
        obs = next(field for field in layout.fields if field.name == "obs")
        flip(tmp_path / "0-4.seg", obs.offset + BLOCK * 512 + 3)
        with pytest.raises(DamageError) as caught:
            files.install(ring)
        assert caught.value.path == part.path
        assert caught.value.offset == obs.offset + BLOCK * 512
        assert len(ring) == 0
        assert files.install(ring, on_damage="drop") == 4 * R + 300 - BLOCK
        first = 4 * R + BLOCK
        assert ring.dropped == (DroppedRun(0, first, BLOCK),)
        ring.extend(**rows(np.arange(4 * R + 300, 6 * R)))
        kept = [*range(first), *range(first + BLOCK, 6 * R)]
        assert ring.gather(ring.refs())["id"].tolist() == kept


@pytest.mark.parametrize("eager", [False, True])
def test_holes_are_saved_and_restored_again(tmp_path, eager):
    """Of mapped segments, of a whole one, and of the open one."""
    second = tmp_path / "second"
    second.mkdir()
    with saved(tmp_path, 4 * R + 300) as files, new_ring() as ring, new_ring() as other:
        layout = ring._plan.layout
        obs = next(field for field in layout.fields if field.name == "obs")
        flip(tmp_path / "0-4.seg", obs.offset + 3)
        files.install(ring, on_damage="drop")
        spoil(ring, 1, "obs", 1)
        spoil(ring, 1, "obs", 3)
        spoil(ring, 2, "id")
        touch_all(ring)
        ring.extend(**rows(np.arange(4 * R + 300, 4 * R + 310)))
        kept = ring.refs().tolist()
        assert len(kept) == 4 * R + 310 - 2 * BLOCK - R - BLOCK
        # Damage of rows that were dropped already is none, however it is restored.
        assert save(ring, second).install(other, eager=eager) == len(kept)
        assert other.dropped == ring.dropped
        assert other.refs().tolist() == kept
        batch = other.gather(other.refs())
        assert batch["id"].tolist() == kept
        np.testing.assert_array_equal(batch["obs"], rows(kept)["obs"])
        assert other.sample(500).indices.tolist() == ring.sample(500).indices.tolist()
        other.extend(**rows(np.arange(4 * R + 310, 4096 + 3 * R)))
        assert other.gather(other.refs())["id"].tolist()[0] == 3 * R


def test_damaged_starts_cost_their_rows_when_they_are_asked_for(tmp_path):
    with mapped_ring(tmp_path, on_damage="drop") as ring:
        spoil(ring, 3, START_FIELD)
        assert ring.gather([3 * R])["id"].tolist() == [3 * R]
        assert ring.breaks().tolist() == [0, 4 * R]
        assert ring.dropped == (DroppedRun(0, 3 * R, R),)


def test_after_an_eager_restore_every_block_that_is_left_is_verified(tmp_path):
    with saved(tmp_path, 4096) as files, new_ring() as ring:
        layout = ring._plan.layout
        obs = next(field for field in layout.fields if field.name == "obs")
        for index in (1, 3):
            flip(tmp_path / "0-2.seg", obs.offset + index * BLOCK * 512)
        assert files.install(ring, on_damage="drop", eager=True) == 4096 - 2 * BLOCK
        control = ring.storage.control
        blocks = range(layout.block_count)
        bad = {(2, obs.first_block + 1), (2, obs.first_block + 3)}
        unverified = {
            (n, b) for n in range(8) for b in blocks if not control.is_verified(0, n, b, b + 1)
        }
        assert unverified == bad
