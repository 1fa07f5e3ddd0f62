"""Blocks that nobody has verified: those of a batch are, and no others."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapped_rings import (
    FIELDS,
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

from pyengine import ReplayBuffer
from pyengine.errors import DamageError
from pyengine.format.segment import iter_blocks

WAIT_SECONDS = 30.0


def verified(ring):
    """(lane, segment, block) of every block of a mapped file that is marked."""
    storage = ring.storage
    return {
        (lane, segment, block)
        for lane, segment in storage.paths
        for block in range(storage.plan.layout.block_count)
        if storage.control.is_verified(lane, segment, block, block + 1)
    }


def blocks_of(ring, refs, names):
    """The same of the blocks that rows lie in, by the page's arithmetic alone."""
    plan, lanes = ring.storage.plan, ring.num_envs
    found = set()
    for ref in refs:
        row, lane = divmod(int(ref), lanes)
        segment, place = divmod(row, plan.segment_rows)
        if (lane, segment) in ring.storage.paths:
            for field in plan.layout.fields:
                if field.name in names:
                    found.add((lane, segment, field.first_block + (place >> field.block_shift)))
    return found


@pytest.fixture(scope="module")
def three_lanes(tmp_path_factory):
    with ReplayBuffer(FIELDS, 3 * 2048, num_envs=3, seed=5) as source:
        ids = np.arange(3 * 1500).reshape(1500, 3)
        source.extend(**rows(ids))
        yield save(source, tmp_path_factory.mktemp("lanes"))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_batches_verify_the_blocks_that_they_need_and_no_others(three_lanes, data):
    with ReplayBuffer(FIELDS, 3 * 2048, num_envs=3, seed=5) as ring:
        three_lanes.install(ring)
        expected = set()
        for _ in range(data.draw(st.integers(1, 3))):
            refs = data.draw(st.lists(st.integers(0, 3 * 1500 - 1), min_size=1, max_size=300))
            if data.draw(st.booleans()):
                batch = ring.gather(refs)
                expected |= blocks_of(ring, refs, {"id", "obs"})
                assert batch["obs"].tolist() == rows(refs)["obs"].tolist()
            else:
                places = ring.storage.plan.rows_per_lane * (np.asarray(refs) % 3)
                column = ring.column("id")[places + np.asarray(refs) // 3]
                expected |= blocks_of(ring, refs, {"id"})
                assert column.tolist() == refs
            assert verified(ring) == expected
        assert ring.storage.control.cold_reads == 0


def put_back_with_first_batch(files, ring):
    """As an engine restores a ring; returns once the blocks of the first batch were looked at."""
    with ring.prepare(files.header, files.files, files.mutable) as prepared:
        prepared.verify_first_batch()
        ring.exchange(prepared)
        prepared.install_sampler()
    for thread in threading.enumerate():
        if thread.name == "pyengine-ask":
            thread.join(WAIT_SECONDS)


def test_the_blocks_of_the_first_batch_are_verified_before_anybody_asks(tmp_path):
    with saved(tmp_path, 4096) as files, new_ring() as ring, new_ring() as other:
        files.install(other)
        put_back_with_first_batch(files, ring)
        expected = blocks_of(ring, other.sample(256).indices, {"id", "obs", "@start"})
        assert verified(ring) == expected
        ring.sample(256)
        assert verified(ring) == expected


def test_damage_in_the_first_batch_is_left_to_whoever_meets_it(tmp_path):
    with saved(tmp_path, 4096) as files, new_ring() as ring:
        with new_ring() as other:
            files.install(other)
            for segment in range(len(other.storage.paths)):
                flip(path_of(other, segment), block_place(other, "obs")[0])
        put_back_with_first_batch(files, ring)
        assert ring.storage.control.cold_reads == 0
        with pytest.raises(DamageError):
            ring.gather(ring.refs())


def test_a_batch_larger_than_what_is_asked_for_at_once_is_whole(tmp_path):
    fields = {"id": "int64", "obs": ((65_536,), "uint8")}
    with ReplayBuffer(fields, 1024) as source, ReplayBuffer(fields, 1024) as ring:
        ids = np.arange(1024)
        obs = np.repeat((ids % 251).astype(np.uint8)[:, None], 65_536, axis=1)
        source.extend(id=ids, obs=obs)
        save(source, tmp_path).install(ring)
        for path in ring.storage.paths.values():
            forget_pages(path)
        batch = ring.gather(ring.refs())
        assert batch["id"].tolist() == ids.tolist()
        assert (batch["obs"] == obs).all()


def test_nobody_is_left_waiting_for_the_disk_after_an_error(tmp_path):
    with mapped_ring(tmp_path) as ring:
        flip(path_of(ring, 2), block_place(ring, "obs")[0] + 7)
        os.truncate(path_of(ring, 1), 4096)
        per_segment = ring.storage.plan.segment_rows
        for segment in (1, 2):
            with pytest.raises(DamageError):
                ring.gather([segment * per_segment])
            assert ring.storage.control.cold_reads == 0


def is_cached(path, offset, length):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(fd, [bytearray(length)], offset, os.RWF_NOWAIT) == length
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def test_a_restore_has_the_rows_of_the_next_draws_read_and_draws_none(tmp_path):
    with new_ring() as source:
        source.extend(**rows(np.arange(4096)))
        source.sample(10)
        files = save(source, tmp_path)
        expected = source.sample(256)
    for file in files.files.values():
        forget_pages(file.path)
    some = next(file for file in files.files.values() if file.record is not None)
    if is_cached(some.path, 4096, 4096):
        pytest.skip("this file system keeps its files in memory")
    with new_ring() as ring:
        files.install(ring)
        assert verified(ring) == set()
        layout = ring.storage.plan.layout
        places = {number: (start, size) for number, start, size in iter_blocks(layout)}
        wanted = blocks_of(ring, expected.indices, {"id", "obs"})
        until = time.monotonic() + WAIT_SECONDS
        while not all(is_cached(path_of(ring, n), *places[block]) for _, n, block in wanted):
            assert time.monotonic() < until, "the rows of the next draws were not read"
        batch = ring.sample(256)
        assert batch.indices.tolist() == expected.indices.tolist()
        assert batch["id"].tolist() == expected["id"].tolist()
