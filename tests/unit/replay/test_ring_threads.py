"""Threads at one ring: closed, restored, bound anew and read while others are at work in it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from idle_owner import IdleOwner
from saved_rings import save

from pyengine import Field, ReplayBuffer
from pyengine._native.control import Words
from pyengine.errors import ClosedError
from pyengine.replay import holding
from pyengine.replay.storage import Storage
from pyengine.shm.arena import Arena
from pyengine.shm.states import SnapshotState, pack_word

pytestmark = pytest.mark.usefixtures("frequent_switches")

FIELDS = {"a": ((64,), "int64"), "b": "int64", "mark": Field((), "int64", mutable=True, default=0)}


def rows(number, steps=None):
    shape = () if steps is None else (steps,)
    return {"a": np.full((*shape, 64), number), "b": np.full(shape, number)}


def run_beside(works, meanwhile, *, to_the_end=False, called=None):
    """Call each of `works` again and again in threads of its own; return what they raised.

    Until `meanwhile` has returned, or `to_the_end`: until each has raised. `called` is released
    after every call.
    """
    stop, raised = threading.Event(), []

    def go_on(work):
        try:
            while not stop.is_set():
                work()
                if called is not None:
                    called.release()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=go_on, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        meanwhile()
    finally:
        if not to_the_end:
            stop.set()
        for thread in threads:
            thread.join()
    return raised


def works_on(ring):
    refs = np.arange(8)

    def sample():
        batch = ring.sample(64)
        assert (batch["a"] == batch["b"][:, None]).all()

    return {
        "sample": sample,
        "add": lambda: ring.add(**rows(3)),
        "extend": lambda: ring.extend(**rows(4, steps=50)),
        "update": lambda: ring.update(refs, mark=7),
        "column": lambda: ring.column("b")[:100],
        "assign": lambda: ring.column("mark").__setitem__(slice(0, 9), 1),
        "break": ring.break_episode,
        "breaks": ring.breaks,
        "len": lambda: len(ring),
    }


@pytest.mark.parametrize("turn", range(15))
def test_a_close_waits_for_calls_of_other_threads_and_they_are_told(turn):
    ring = ReplayBuffer(FIELDS, 512)
    ring.extend(**rows(1, steps=600))
    works = [*works_on(ring).values()]

    called = threading.Semaphore(0)

    def close():
        for _ in range(20 * turn):
            called.acquire()
        ring.close()

    raised = run_beside(works, close, to_the_end=True, called=called)
    assert [type(error) for error in raised] == [ClosedError] * len(works)
    with pytest.raises(ClosedError):
        ring.sample(1)


def test_a_lock_after_the_close_is_refused():
    with ReplayBuffer(FIELDS, 16) as ring:
        ring.add(**rows(1))
        core = ring.storage.core
        assert core.reserve_ahead(1) in (True, False, None)
    assert core.reserve_ahead(1) is None
    core.drop_holds()
    for call in (
        lambda: core.locked().__enter__(),
        lambda: core.gather(np.zeros(1, np.int64), [None] * 4, True),
        lambda: core.refs_at(np.zeros(1, np.int64), np.zeros(1, np.int64)),
        lambda: core.break_lanes(0, 1),
    ):
        with pytest.raises(ClosedError):
            call()
    assert core.append_exact(rows(1), None, False, -1) == -1


def test_a_ring_that_its_own_thread_has_frozen_is_not_closed():
    with ReplayBuffer(FIELDS, 16) as ring:
        ring.add(**rows(1))
        with ring.freeze(), pytest.raises(RuntimeError):
            ring.close()
        ring.add(**rows(2))
        assert len(ring) == 2


def test_a_ring_closed_while_its_memory_is_made_has_none(monkeypatch):
    ring = ReplayBuffer(FIELDS, 16)

    def made_slowly(*arguments, **options):
        thread = threading.Thread(target=ring.close)
        thread.start()
        thread.join()
        return Storage(*arguments, **options)

    monkeypatch.setattr(holding, "Storage", made_slowly)
    with pytest.raises(ClosedError):
        ring.add(**rows(1))
    assert ring.storage is None


def test_a_restore_puts_other_rows_under_threads_at_work(tmp_path):
    """None of them is told of a closed ring: the ring is open, and its rows are whole."""
    with ReplayBuffer(FIELDS, 512) as ring:
        ring.extend(**rows(1, steps=600))
        saved = save(ring, tmp_path)

        def restore():
            for _ in range(40):
                assert saved.install(ring) == 512

        assert run_beside(works_on(ring).values(), restore) == []


def test_who_froze_a_ring_keeps_it_through_a_restore(tmp_path):
    with ReplayBuffer(FIELDS, 64) as ring:
        ring.extend(**rows(1, steps=64))
        saved = save(ring, tmp_path)
        with ring.freeze():
            frozen = ring.storage
            thread = threading.Thread(target=saved.install, args=(ring,))
            thread.start()
            thread.join(0.2)
            assert thread.is_alive()
            assert ring.storage is frozen
        thread.join()
        assert ring.storage is not frozen


def test_breaks_and_columns_are_of_one_instant_while_rows_leave():
    """A read of many rows in a full ring ends, however fast others are added."""
    with ReplayBuffer({"id": "int64", "end": "bool"}, 4096) as ring:
        ring.extend(id=np.arange(8192), end=np.zeros(8192, bool))
        number = iter(range(8192, 1 << 40))
        ends = np.zeros((), bool)
        seen = []

        def read():
            for _ in range(300):
                column = np.sort(np.asarray(ring.column("id")))
                seen.append((column == np.arange(column[0], column[0] + 4096)).all())
                starts = ring.breaks()
                seen.append((np.diff(starts) > 0).all())

        def add():
            ring.add(id=np.asarray(next(number)), end=ends)
            ring.break_episode()

        assert run_beside([add], read) == []
        assert all(seen)


def test_holds_are_dropped_under_the_lock():
    """The words of a snapshot may be unmapped as soon as `unbind` has returned."""

    with ReplayBuffer(FIELDS, 16) as ring:
        ring.extend(**rows(1, steps=16))
        owner = IdleOwner()
        ring.bind(owner, "replay")
        with Arena.create(4096, "words") as arena:
            Words(arena.mapping, 0, 1).store(0, pack_word(1, SnapshotState.PENDING))
            with ring.freeze():
                ring.cut(arena.mapping, 0, 1)
                thread = threading.Thread(target=ring.unbind, args=(owner,))
                thread.start()
                thread.join(0.1)
                assert thread.is_alive()
            thread.join()
        ring.extend(**rows(2, steps=100))
        assert len(ring) == 16


def test_the_words_of_a_hold_stay_mapped_until_it_is_dropped():
    """An engine whose end failed half-way may have closed them."""
    with ReplayBuffer(FIELDS, 16) as ring:
        ring.extend(**rows(1, steps=16))
        owner = IdleOwner()
        ring.bind(owner, "replay")
        with Arena.create(4096, "words") as arena:
            mapping = arena.mapping
            Words(mapping, 0, 1).store(0, pack_word(1, SnapshotState.COMMITTED))
            with ring.freeze():
                ring.cut(mapping, 0, 1)
        assert not mapping.closed
        ring.extend(**rows(2, steps=100))
        ring.unbind(owner)
        mapping.close()
        ring.extend(**rows(3, steps=100))
        assert len(ring) == 16


def test_a_closed_ring_lets_go_of_the_words():
    with Arena.create(4096, "words") as arena, ReplayBuffer(FIELDS, 16) as ring:
        mapping = arena.mapping
        with ring.freeze():
            ring.cut(mapping, 0, 1)
        ring.close()
        mapping.close()


def test_who_froze_a_ring_may_end_its_engine_s_interest():
    with Arena.create(4096, "words") as arena, ReplayBuffer(FIELDS, 16) as ring:
        ring.extend(**rows(1, steps=16))
        owner = IdleOwner()
        ring.bind(owner, "replay")
        Words(arena.mapping, 0, 1).store(0, pack_word(1, SnapshotState.PENDING))
        with ring.freeze():
            ring.cut(arena.mapping, 0, 1)
            ring.unbind(owner)
        ring.extend(**rows(2, steps=100))
        assert len(ring) == 16


def test_an_update_of_several_fields_is_one():
    fields = {
        "id": "int64",
        "x": Field((), "int64", mutable=True, default=0),
        "y": Field((), "int64", mutable=True, default=0),
    }
    with ReplayBuffer(fields, 64) as ring:
        ring.extend(id=np.arange(100))
        assert ring.update([3, 4, 50], x=1, y=[1, 1, 1]) == 2
        assert ring.lost_updates == 2
        newest = ring.refs()[32:]
        torn = []

        def check():
            batch = ring.gather(newest)
            torn.append((batch["x"] != batch["y"]).any())

        def update():
            for value in range(3000):
                ring.update(newest, x=value, y=value)

        assert run_beside([check], update) == []
        assert not any(torn)
