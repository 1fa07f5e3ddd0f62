"""A signal handler may use the ring, and what an engine does to it, at any point of a ring's call.

Python runs handlers in the main thread between any two opcodes, also those of a ring's methods, and
an engine works on its rings in threads of its own, which the handler waits for.
"""

from __future__ import annotations

import signal
import sys
import threading

import numpy as np
import pytest
from idle_owner import IdleOwner
from saved_rings import save

from pyengine import Field, ReplayBuffer
from pyengine._native.control import Words
from pyengine.shm.arena import Arena
from pyengine.shm.states import SnapshotState, pack_word

FIELDS = {"id": "int64", "mark": Field((), "int32", mutable=True, default=0)}
CAPACITY = 16


def handled_at(place, call, handler):
    """Call `call` and run `handler` before the n-th opcode of ours; whether that was reached."""
    left, failed = place, []

    def handle(*_):
        try:
            handler()
        except BaseException as error:
            failed.append(error)

    def trace(frame, event, argument):
        nonlocal left
        if "/pyengine/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR1)
        return trace

    before = signal.signal(signal.SIGUSR1, handle)
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGUSR1, before)
    assert failed == []
    return left <= 0


def in_thread(work):
    """Run `work` as an engine does in a handler: elsewhere, waited for."""
    failed = []

    def run():
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "the handler waits for its own thread"
    assert failed == []


@pytest.fixture
def arena():
    with Arena.create(4096, "words") as made:
        Words(made.mapping, 0, 1).store(0, pack_word(1, SnapshotState.COMMITTED))
        yield made


def new_ring():
    return ReplayBuffer(FIELDS, CAPACITY, seed=1)


CALLS = {
    "add": lambda ring: ring.add(id=7),
    "extend": lambda ring: ring.extend(id=np.arange(20)),
    "sample": lambda ring: ring.sample(4),
    "gather": lambda ring: ring.gather_at([0, 1]),
    "update": lambda ring: ring.update([0], mark=3),
    "assign": lambda ring: ring.column("mark").__setitem__(slice(0, 4), 5),
    "read": lambda ring: ring.column("id")[:],
    "breaks": lambda ring: (ring.break_episode(), ring.breaks()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_handler_takes_a_cut_and_adds_rows_wherever_it_runs(name, arena):
    with new_ring() as ring:
        ring.extend(id=np.arange(4))
        CALLS[name](ring)
        count = ring.total_count
    place, reached = 1, True
    while reached:
        with new_ring() as ring:
            ring.extend(id=np.arange(4))
            owner = IdleOwner()
            ring.bind(owner, "replay")

            def handler(ring=ring, owner=owner):
                with ring.freeze():
                    ring.cut(arena.mapping, 0, 1)
                ring.unbind(owner)
                ring.bind(owner, "replay")

            def handle(ring=ring, handler=handler):
                in_thread(handler)
                ring.add(id=9)

            reached = handled_at(place, lambda ring=ring: CALLS[name](ring), handle)
            assert ring.total_count == count + reached
            ring.add(id=1)  # no lock is left held
            place += 1
    assert place > 30


def test_a_handler_uses_a_ring_whose_memory_is_just_made(arena):
    place, reached = 1, True
    while reached:
        with new_ring() as ring:

            def handle(ring=ring):
                ring.add(id=9)
                in_thread(lambda: ring.column("mark").__setitem__(0, 5))

            reached = handled_at(place, lambda ring=ring: ring.add(id=7), handle)
            ids = ring.gather(ring.refs())["id"].tolist()
            assert sorted(ids) == ([7, 9] if reached else [7])
            place += 11
    assert place > 300


def test_a_handler_takes_a_cut_while_it_is_restored(arena, tmp_path):
    with new_ring() as ring:
        ring.extend(id=np.arange(40))
        saved = save(ring, tmp_path)
    place, reached = 1, True
    while reached:
        with new_ring() as ring:
            ring.add(id=1)

            def cut(ring=ring):
                with ring.freeze():
                    ring.cut(arena.mapping, 0, 1)

            reached = handled_at(
                place, lambda ring=ring: saved.install(ring), lambda cut=cut: in_thread(cut)
            )
            assert ring.gather(ring.refs())["id"].tolist() == list(range(24, 40))
            place += 67
    assert place > 1000
