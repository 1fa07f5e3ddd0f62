"""No free slot: what add waits for, what it gives up, and what it says in the end."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest

from pyengine import ReplayBuffer
from pyengine._native.control import Words
from pyengine.errors import PyengineError, SharedMemoryError
from pyengine.replay import waiting
from pyengine.shm.arena import Arena
from pyengine.shm.states import SnapshotState, pack_word, unpack_word

CAPACITY = 16


class Owner:
    """An engine with one snapshot, whose word is the first of `words`."""

    def __init__(self, words, state):
        self.words = words
        self.words.store(0, pack_word(1, state))
        self.reasons = []
        self.polled = threading.Event()
        self.asked = threading.Event()

    @property
    def state(self):
        return SnapshotState(unpack_word(self.words.load(0))[1])

    def move(self, before, after):
        return self.words.compare_exchange(0, pack_word(1, before), pack_word(1, after))

    def poll(self):
        self.polled.set()

    def cancel_holding(self, reason):
        self.reasons.append(reason)
        cancelled = self.move(SnapshotState.PENDING, SnapshotState.CANCELLED)
        self.asked.set()
        return int(cancelled)

    def committing(self):
        return ("snapshot 1",) if self.state == SnapshotState.COMMITTING else ()


@pytest.fixture
def held():
    """Make a full ring whose every row a snapshot in the given state holds; nothing persists."""
    with Arena.create(4096, "words") as arena, ReplayBuffer({"id": "int64"}, CAPACITY) as ring:

        def make(state, slot_wait):
            ring.slot_wait = slot_wait
            ring.extend(id=np.arange(CAPACITY))
            owner = Owner(Words(arena.mapping, 0, 1), state)
            ring.bind(owner, "replay")
            with ring.freeze():
                ring.cut(arena.mapping, 0, 1)
            return ring, owner

        yield make


@contextlib.contextmanager
def at_once(event, call, *arguments):
    """Call from another thread as soon as the event is there."""

    def wait():
        event.wait()
        call(*arguments)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield
    thread.join()


def test_at_the_bound_a_pending_snapshot_is_cancelled(held):
    ring, owner = held(SnapshotState.PENDING, 0.05)
    ring.extend(id=np.arange(100))
    assert owner.state == SnapshotState.CANCELLED
    assert len(owner.reasons) == 1
    assert owner.polled.is_set()
    assert ring.wait_count == 1
    assert ring.wait_seconds >= 0.05


def test_a_commit_is_waited_for_beyond_the_bound(held):
    ring, owner = held(SnapshotState.COMMITTING, 0.05)
    with at_once(owner.asked, owner.move, SnapshotState.COMMITTING, SnapshotState.COMMITTED):
        ring.extend(id=np.arange(100))
    assert ring.total_count == CAPACITY + 100
    assert owner.state == SnapshotState.COMMITTED


def test_a_commit_that_goes_back_to_pending_is_cancelled(held):
    """As when its writer died: what is pending again can be given up."""
    ring, owner = held(SnapshotState.COMMITTING, 0.05)
    with at_once(owner.asked, owner.move, SnapshotState.COMMITTING, SnapshotState.PENDING):
        ring.extend(id=np.arange(100))
    assert owner.state == SnapshotState.CANCELLED


def test_a_commit_that_never_ends_is_named(held, monkeypatch):
    ring, _ = held(SnapshotState.COMMITTING, 0.05)
    monkeypatch.setattr(waiting, "COMMIT_WAIT_SECONDS", 0.2)
    with pytest.raises(SharedMemoryError, match="snapshot 1 is being committed") as caught:
        ring.extend(id=np.arange(100))
    assert caught.value.needed_bytes == ring.storage.plan.layout.file_bytes
    assert ring.wait_seconds >= 0.25
    assert ring.gather(ring.refs())["id"][-1] == ring.total_count - CAPACITY - 1


def test_without_a_snapshot_to_cancel_the_error_says_so(held):
    ring, owner = held(SnapshotState.PENDING, 0.05)
    owner.cancel_holding = lambda reason: 0
    with pytest.raises(SharedMemoryError, match="no pending snapshot"):
        ring.extend(id=np.arange(100))


def test_an_engine_that_lets_go_meanwhile_sets_the_ring_free(held):
    ring, owner = held(SnapshotState.PENDING, 30)
    with at_once(owner.polled, ring.unbind, owner):
        ring.extend(id=np.arange(100))
    assert owner.reasons == []
    assert ring.total_count == CAPACITY + 100


def test_holds_of_nobody_are_not_waited_for(held):
    ring, _ = held(SnapshotState.PENDING, 30)
    ring._owner = None
    with pytest.raises(PyengineError, match="no engine"):
        ring.extend(id=np.arange(100))
