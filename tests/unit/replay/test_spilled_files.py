"""Files that segments are to live in and that are not what was written, or cannot be had."""

from __future__ import annotations

import errno
import logging
import os
import resource

import numpy as np
import pytest
from mapped_rings import block_place, flip, path_of, rows
from spilled_rings import Clock, R, check, is_file, persisted

from pyengine.errors import (
    DamageError,
    DroppedRowError,
    SharedMemoryError,
)
from pyengine.replay import waiting


def files(tmp_path):
    return sorted(tmp_path.iterdir(), key=lambda path: int(path.name.split("-")[2]))


def spoil_header(path):
    flip(path, 100)


def spoil_table(path):
    flip(path, path.stat().st_size - 20)


def cut_short(path):
    os.truncate(path, 8192)


def remove(path):
    path.unlink()


def swap(path):
    path.write_bytes(files(path.parent)[0].read_bytes())


@pytest.mark.parametrize("spoil", [spoil_header, spoil_table, cut_short, remove, swap])
def test_a_segment_whose_file_is_not_what_was_written_stays_in_memory(
    alone, tmp_path, caplog, spoil
):
    ring, _ = persisted(tmp_path)
    with ring, caplog.at_level(logging.WARNING, logger="pyengine"):
        path = files(tmp_path)[1]
        spoil(path)
        for _ in range(3):
            ring.storage.spiller.spill(10)
        assert [is_file(ring, segment) for segment in range(3)] == [True, False, True]
        assert caplog.text.count(str(path)) >= 1
        assert caplog.text.count("segment 1 of lane 0 stays in memory") == 1
        check(ring, 0, 3 * R)


def test_where_all_files_are_gone_the_error_names_one(alone, tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "time", Clock())
    ring, _ = persisted(tmp_path, segments=6)
    with ring:
        names = files(tmp_path)
        for path in names:
            path.unlink()
        with pytest.raises(SharedMemoryError, match="could not leave memory") as caught:
            ring.add(**rows(6 * R))
        assert any(str(path) in str(caught.value) for path in names)
        check(ring, 0, 6 * R)


def test_a_process_without_a_descriptor_left_is_told_and_tries_again(alone, tmp_path, caplog):
    ring, _ = persisted(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ring, caplog.at_level(logging.WARNING, logger="pyengine"):
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            assert ring.storage.spiller.spill(3) == 0
            assert ring.storage.spiller.spill(3) == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert caplog.text.count(os.strerror(errno.EMFILE)) == 1
        assert ring.storage.spiller.spill(3) == 3
        check(ring, 0, 3 * R)


def test_a_process_without_room_for_a_mapping_is_told_why(alone, tmp_path, caplog):
    ring, _ = persisted(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with ring, caplog.at_level(logging.WARNING, logger="pyengine"):
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, limits[1]))
        try:
            freed = ring.storage.spiller.spill(3)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
        assert freed == 0
        assert "vm.max_map_count" in ring.storage.spiller.cause
        check(ring, 0, 3 * R)


def test_a_damaged_block_is_met_at_its_first_touch(alone, tmp_path):
    ring, _ = persisted(tmp_path)
    with ring:
        assert ring.storage.spiller.spill(3) == 3
        path, (offset, _) = path_of(ring, 1), block_place(ring, "obs", 2)
        flip(path, offset + 7)
        with pytest.raises(DamageError) as caught:
            ring.gather([R + 300])
        assert (caught.value.path, caught.value.offset) == (str(path), offset)
        others = np.delete(ring.refs(), np.s_[R + 256 : R + 384])
        assert ring.gather(others)["id"].tolist() == others.tolist()


def test_damaged_rows_leave_the_ring_where_that_was_asked_for(alone, tmp_path):
    ring, _ = persisted(tmp_path, on_damage="drop")
    with ring:
        assert ring.may_drop
        ring.storage.spiller.spill(3)
        flip(path_of(ring, 1), block_place(ring, "obs", 2)[0] + 7)
        with pytest.raises(DroppedRowError):
            ring.gather([R + 300])
        assert [tuple(vars_of(run)) for run in ring.dropped] == [(0, R + 256, 128)]
        assert len(ring) == 3 * R - 128
        assert ring.sample(2000)["id"].size == 2000


def vars_of(run):
    return run.lane, run.first_row, run.row_count
