"""Tracked rings against the shared memory that is left: all of them, with what they have taken."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from idle_owner import IdleOwner

from pyengine import ReplayBuffer
from pyengine.errors import SharedMemoryError
from pyengine.replay import demand

FIELDS = {"x": ((256,), "float32")}
MIB = 1 << 20


@pytest.fixture
def free(monkeypatch):
    """Set how many bytes are left; rings that other tests left to the collector do not count."""
    monkeypatch.setattr(demand, "_tracked", {})

    def leave(count):
        monkeypatch.setattr(demand, "headroom", lambda: count)

    return leave


def new_ring(rows=16384):
    return ReplayBuffer(FIELDS, rows)  # 17 MiB


def test_rings_are_counted_together(free):
    owner = IdleOwner()
    free(20 * MIB)
    with new_ring() as one, new_ring() as two, new_ring(1024) as small:
        one.bind(owner, "one", strict=True)
        with pytest.raises(SharedMemoryError, match="two: the rings have") as caught:
            two.bind(owner, "two", strict=True)
        assert caught.value.free_bytes == 20 * MIB
        assert caught.value.needed_bytes == one.whole_bytes + two.whole_bytes
        small.bind(owner, "small", strict=True)  # the refused one is not counted
        one.unbind(owner)
        two.bind(owner, "two", strict=True)  # nor one that is tracked no longer
        two.close()
        one.bind(owner, "one", strict=True)  # nor one that is closed


def test_a_ring_with_rows_is_compared_as_well(free):
    free(20 * MIB)
    with new_ring(65536) as ring:
        ring.add(x=np.zeros(256, np.float32))
        with pytest.raises(SharedMemoryError):
            ring.bind(IdleOwner(), "ring", strict=True)


def test_what_a_ring_has_taken_already_is_not_asked_for_again(free):
    with new_ring() as ring:
        ring.extend(x=np.zeros((40000, 256), np.float32))
        assert ring.untaken_bytes() < ring.whole_bytes // 4
        free(ring.whole_bytes // 4)
        ring.bind(IdleOwner(), "ring", strict=True)


def test_a_ring_with_a_limit_takes_no_more_than_that(free):
    free(20 * MIB)
    with ReplayBuffer(FIELDS, 1 << 20, memory_limit=64 * MIB) as large:
        assert 48 * MIB < large.whole_bytes < 52 * MIB  # three segments of 16 MiB
        with pytest.raises(SharedMemoryError):
            large.bind(IdleOwner(), "ring", strict=True, pool="/nowhere")
    with ReplayBuffer(FIELDS, 65536, memory_limit=16 * MIB) as ring:
        ring.bind(IdleOwner(), "ring", strict=True, pool="/nowhere")


def test_a_ring_whose_rows_have_files_is_told_where_they_will_live(free, caplog):
    with new_ring() as ring, caplog.at_level(logging.WARNING, "pyengine"):
        free(ring.whole_bytes // 2)
        ring.bind(IdleOwner(), "ring", pool="/nowhere")
    assert "about row 8192 of 16384; from there on the oldest rows are read from" in caplog.text


def test_the_row_at_which_memory_will_end_is_named(free, caplog):
    with new_ring() as ring, caplog.at_level(logging.WARNING, "pyengine"):
        free(ring.whole_bytes // 2)
        ring.bind(IdleOwner(), "ring")
    assert "memory will end at about row 8192 of 16384" in caplog.text
