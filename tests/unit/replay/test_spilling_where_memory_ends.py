"""Segments leave memory that has ended or is limited: who waits, and what is told."""

from __future__ import annotations

import os

import numpy as np
import pytest
from mapped_rings import new_ring, rows
from pool_owner import PoolOwner
from spilled_rings import Clock, R, check, limited

from pyengine.errors import (
    SharedMemoryError,
)
from pyengine.replay import allowance, waiting


def test_a_writer_that_stands_still_is_waited_for_and_then_told(alone, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    with limited() as ring:
        owner = PoolOwner(ring, tmp_path)
        owner.is_stopped = True
        with pytest.raises(SharedMemoryError, match="of 4 full segments none was written"):
            ring.extend(**rows(np.arange(4096)))
        assert ring.total_count == 4 * R
        assert ring.slot_wait + waiting.SPILL_WAIT_SECONDS < clock.now - 100 < 75
        owner.is_stopped = False
        ring.extend(**rows(np.arange(4 * R, 4096)))
        check(ring, 0, 4096)


def test_a_writer_that_is_slow_is_waited_for_as_long_as_it_gets_on(alone, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    with limited(3) as ring:
        owner = PoolOwner(ring, tmp_path)
        looks = 0

        def write_one_of_fifty():
            nonlocal looks
            looks += 1
            if looks % 50 == 0:
                owner.persist(1)

        owner.poll = write_one_of_fifty
        ring.extend(**rows(np.arange(8192)))
        assert clock.now > 100 + 10 * 50
        check(ring, 4096, 8192)


@pytest.mark.parametrize("refused", ["the cgroup", "/dev/shm"])
@pytest.mark.parametrize("steps", [1, 700])
def test_where_memory_ends_the_oldest_rows_leave_it(alone, tmp_path, monkeypatch, refused, steps):
    with new_ring() as ring:
        PoolOwner(ring, tmp_path)
        for i in range(3 * R):
            ring.add(**rows(i))
        kept = end_memory(ring, monkeypatch, refused)
        for first in range(3 * R, 9000 - steps, steps):
            ring.extend(**rows(np.arange(first, first + steps)))
        check(ring, max(0, ring.total_count - 4096), ring.total_count)
        assert ring.storage.core.slots()[1] <= 4
        assert ring.storage.core.mapped_segments >= 4
        give_back(ring, kept)


def end_memory(ring, monkeypatch, how):
    """From now on no slot gets memory; return what `give_back` needs."""
    if how == "the cgroup":
        ring.storage.core.allow_bytes(0)
        monkeypatch.setattr(allowance, "headroom", lambda **_: 1000)
        return None
    fd = ring.storage.arena.fd
    kept, null = os.dup(fd), os.open("/dev/null", os.O_RDWR)
    os.dup2(null, fd, inheritable=False)
    os.close(null)
    return kept


def give_back(ring, kept):
    if kept is not None:
        os.dup2(kept, ring.storage.arena.fd, inheritable=False)
        os.close(kept)


def test_where_memory_ends_before_there_is_anything_to_write_the_error_comes_at_once(
    alone, tmp_path, monkeypatch
):
    with new_ring() as ring:
        PoolOwner(ring, tmp_path)
        monkeypatch.setattr(allowance, "headroom", lambda **_: 1000)
        with pytest.raises(SharedMemoryError, match="Raise the memory limit"):
            ring.extend(**rows(np.arange(2 * R)))
        assert ring.total_count == 0
        assert ring.wait_count == 0


def test_where_memory_ends_and_nothing_is_written_both_causes_are_told(
    alone, tmp_path, monkeypatch
):
    monkeypatch.setattr(waiting, "time", Clock())
    with new_ring() as ring:
        PoolOwner(ring, tmp_path).is_stopped = True
        ring.extend(**rows(np.arange(3 * R)))
        end_memory(ring, monkeypatch, "the cgroup")
        with pytest.raises(SharedMemoryError, match=r"1000 are free.*none was written") as caught:
            ring.extend(**rows(np.arange(3 * R, 4096)))
        assert caught.value.free_bytes == 1000
