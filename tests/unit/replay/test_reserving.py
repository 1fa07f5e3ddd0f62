"""The thread that gives slots memory ahead of the head: what it outlives, and a fork beside it."""

from __future__ import annotations

import os
import signal
import threading
import weakref

import numpy as np
import pytest

from pyengine import ReplayBuffer
from pyengine._native.ring import NoMemory
from pyengine.errors import ClosedError, SharedMemoryError
from pyengine.replay import allowance, reserving


class Storage:
    """Stands for itself, its core, plan and spiller; answers `reserve_ahead` as it was told."""

    asks_for_memory = False
    memory_limit = None
    file_bytes = 1 << 20

    def __init__(self, *answers):
        self.answers = list(answers)
        self.core = self.plan = self.layout = self.spiller = weakref.proxy(self)
        self.closing = threading.Event()
        self.spilled = []

    def reserve_ahead(self, ahead):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def missing(self, ahead):
        return 2

    def spill(self, count):
        self.spilled.append(count)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(reserving, "_RETRY_SECONDS", 0)
    monkeypatch.setattr(reserving, "_POLL_SECONDS", 0)


def test_memory_that_is_short_for_a_while_is_asked_for_again(impatient):
    storage = Storage(True, NoMemory(28), NoMemory(28), True, False, True, None)
    reserving.keep_slots_ready(weakref.ref(storage), storage.closing)
    assert storage.answers == []
    assert storage.spilled == [2, 2]  # where memory was refused, and only there


def test_a_ring_with_a_limit_is_looked_after_to_its_end(impatient):
    storage = Storage(True, False, None, None, ClosedError("closed"))
    storage.memory_limit = 1 << 20
    reserving.keep_slots_ready(weakref.ref(storage), storage.closing)
    assert storage.answers == []
    assert storage.spilled == [2, 2]


def test_short_memory_is_told_from_enough(monkeypatch):
    # The thread must not take what this test is to be given.
    monkeypatch.setattr(reserving, "_POLL_SECONDS", 60)
    with ReplayBuffer({"id": "int64"}, 1 << 16) as ring:
        ring.add(id=1)
        storage = ring.storage
        storage._closing.set()
        storage.core.allow_bytes(1 << 40)
        fd, kept = storage.arena.fd, os.dup(storage.arena.fd)
        null = os.open("/dev/null", os.O_RDWR)
        try:
            os.dup2(null, fd, inheritable=False)
            with pytest.raises(NoMemory):
                storage.core.reserve_ahead(1 << 30)
        finally:
            os.dup2(kept, fd, inheritable=False)
            os.close(kept)
            os.close(null)
        while (given := storage.core.reserve_ahead(1 << 30)) is True:
            pass
        assert given is None
        ring.extend(id=np.arange(1 << 17))


def test_a_child_forked_while_the_thread_looks_at_the_clock_ends_its_ring():
    """The lock of an event that another thread holds at the fork is never let go of there."""
    ring = ReplayBuffer({"id": "int64"}, 64)
    ring.add(id=1)
    with ring.storage._closing._cond:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            ring._parents_storage.close()
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ring.close()


def test_slots_take_what_was_allowed_and_then_ask(monkeypatch):
    monkeypatch.setattr(reserving, "_POLL_SECONDS", 60)
    with ReplayBuffer({"id": "int64"}, 1 << 16) as ring:
        ring.add(id=1)
        storage = ring.storage
        storage._closing.set()
        slot_bytes = storage.plan.layout.file_bytes
        before = storage.arena.taken_bytes
        storage.core.allow_bytes(2 * slot_bytes)
        assert storage.core.reserve_ahead(1 << 30) is True
        assert storage.core.reserve_ahead(1 << 30) is True
        assert not storage.core.asks_for_memory
        assert storage.core.reserve_ahead(1 << 30) is False
        assert storage.core.asks_for_memory
        assert storage.arena.taken_bytes - before == 2 * slot_bytes


@pytest.mark.parametrize("steps", [1, 1 << 15])
def test_where_memory_ends_rows_are_refused_with_what_is_needed_and_free(monkeypatch, steps):
    monkeypatch.setattr(reserving, "_POLL_SECONDS", 60)
    with ReplayBuffer({"id": "int64"}, 1 << 16) as ring:
        ring.add(id=0)
        ring.storage._closing.set()
        ring.storage.core.allow_bytes(0)
        monkeypatch.setattr(allowance, "headroom", lambda **_: 1000)
        rows = ring.storage.plan.segment_rows

        def fill():
            for _ in range(rows):
                ring.extend(id=np.arange(steps) + 1)

        with pytest.raises(SharedMemoryError, match="Raise the memory limit") as caught:
            fill()
        assert caught.value.free_bytes == 1000
        assert caught.value.needed_bytes == ring.storage.plan.layout.file_bytes
        assert ring.total_count % rows == 0
        # What came before is whole, and goes on once there is memory again.
        assert len(ring) == ring.total_count
        monkeypatch.undo()
        ring.add(id=7)
        assert ring[ring.refs()]["id"][-1] == 7


def test_a_restore_where_memory_ends_raises_the_same(monkeypatch):
    with ReplayBuffer({"id": "int64"}, 1 << 16) as ring:
        ring.add(id=0)
        monkeypatch.setattr(allowance, "headroom", lambda **_: 1000)
        ring.storage._closing.set()
        ring.storage.core.allow_bytes(0)
        with pytest.raises(SharedMemoryError):
            ring.storage.open_segment(0, 5, "restore")
