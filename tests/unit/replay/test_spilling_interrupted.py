"""Spilling beside threads, signal handlers, interrupts and forks."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from mapped_rings import rows
from pool_owner import PoolOwner
from processes import interrupted_at
from spilled_rings import R, check, limited, persisted, slot_bytes

from pyengine import ReplayBuffer
from pyengine.replay import reserving


def test_threads_that_spill_append_and_read_at_once_see_whole_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(reserving, "_POLL_SECONDS", 0)
    with limited(4) as ring:
        owner = PoolOwner(ring, tmp_path)
        writing = threading.Lock()

        def persist():
            with writing:
                owner.persist()

        owner.poll = persist
        ring.extend(**rows(np.arange(4096)))
        done, wrong = threading.Event(), []

        def read():
            while not done.is_set():
                batch = ring.sample(64)
                if not np.array_equal(batch["obs"], rows(batch["id"])["obs"]):
                    wrong.append(batch)

        def spill():
            while not done.is_set():
                persist()
                ring.storage.spill()

        threads = [threading.Thread(target=work) for work in (read, read, spill, spill)]
        for thread in threads:
            thread.start()
        try:
            for first in range(4096, 40 * R, 100):
                ring.extend(**rows(np.arange(first, first + 100)))
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert wrong == []
        check(ring, ring.tail, ring.total_count)


SMALL = 16
"""Rows of a segment of `small_ring`, which has 4 of them."""


def small_ring(directory):
    """A limited ring of six slots, three of them PERSISTED."""
    directory.mkdir()
    with ReplayBuffer({"id": "int64"}, 4 * SMALL) as whole:
        size = slot_bytes(whole)
    ring = ReplayBuffer({"id": "int64"}, 4 * SMALL, memory_limit=6 * size)
    owner = PoolOwner(ring, directory)
    ring.extend(id=np.arange(3 * SMALL))
    owner.persist()
    return ring


def holds_all(ring):
    refs = ring.refs()
    assert refs.tolist() == list(range(max(0, ring.total_count - 4 * SMALL), ring.total_count))
    assert ring.gather(refs)["id"].tolist() == refs.tolist()


@pytest.mark.parametrize("work", ["spills", "appends"])
def test_a_signal_handler_may_come_at_any_point_of_a_spill(alone, tmp_path, work):
    place, reached = 0 if work == "spills" else 1, True
    while reached:
        place += 3
        with small_ring(tmp_path / str(place)) as ring:

            def handle(ring=ring):
                if work == "spills":
                    ring.storage.spiller.spill(1)
                else:
                    ring.extend(id=np.arange(3 * SMALL, 8 * SMALL))

            reached, _ = interrupted_at(
                place, lambda r=ring: r.storage.spiller.spill(1), act=handle
            )
            holds_all(ring)
            ring.extend(id=np.arange(ring.total_count, 20 * SMALL))
            holds_all(ring)
            assert ring.storage.mapped.keys() == ring.storage.paths.keys()
    assert place > 20


def test_an_interrupt_at_any_point_of_a_spill_leaves_every_row(alone, tmp_path):
    place, reached = 0, True
    while reached:
        place += 1
        with small_ring(tmp_path / str(place)) as ring:
            reached, _ = interrupted_at(place, lambda r=ring: r.storage.spiller.spill(1))
            holds_all(ring)
            ring.extend(id=np.arange(3 * SMALL, 20 * SMALL))
            holds_all(ring)
    assert place > 20


def test_a_forked_child_maps_nothing(tmp_path):
    ring, _ = persisted(tmp_path)
    with ring:
        ring.storage.spiller.spill(3)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            with ring:
                pass
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        check(ring, 0, 3 * R)
