"""Default batches lie in memory that is used again, and no two that live share any."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import traceback
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_rings import save

from pyengine import Field, ReplayBuffer
from pyengine._native.outputs import OutputPool

FIELDS = {
    "image": ((70, 100), "uint8"),
    "half": ((3,), "bfloat16"),
    "id": "int64",
    "mark": Field((), "float32", mutable=True, default=0.5),
}
MIB = 1 << 20


def filled(capacity=64, **options):
    ring = ReplayBuffer(FIELDS, capacity, seed=1, **options)
    ids = np.arange(capacity)
    image = np.broadcast_to(ids[:, None, None].astype(np.uint8), (capacity, 70, 100))
    ring.extend(image=image, half=np.stack([ids] * 3, 1).astype(np.uint16), id=ids)
    return ring


@pytest.fixture
def ring():
    with filled() as made:
        yield made


def pool_of(ring):
    return ring._outputs.pool


def is_whole(batch):
    ids = np.asarray(batch["id"])
    return (np.asarray(batch["image"]) == ids.astype(np.uint8)[:, None, None]).all()


def span(value):
    start = value.data_ptr() if isinstance(value, torch.Tensor) else value.ctypes.data
    return start, start + value.nbytes


def spans(batch):
    return [span(value) for value in batch.values_by_field.values()]


def share_memory(one, other):
    return any(a < d and c < b for a, b in spans(one) for c, d in spans(other))


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("sample"), st.sampled_from([1, 8, 32]), st.sampled_from([None, "cpu"])),
        st.tuples(st.just("drop"), st.integers(0, 9), st.none()),
        st.tuples(st.just("view"), st.integers(0, 9), st.none()),
    ),
    max_size=25,
)


def use_batches(ring, actions):
    live, views = [], []
    for action, number, device in actions:
        if action == "sample":
            live.append(ring.sample(number, device=device))
        elif action == "drop" and live:
            live.pop(number % len(live))
        elif live:
            # What outlives its batch: a view, whose values must stay.
            view = live.pop(number % len(live))["image"][:, 1:, ::2]
            views.append((np.asarray(view), np.asarray(view).copy()))
        assert all(is_whole(batch) for batch in live)
        assert not any(share_memory(one, other) for one, other in combinations(live, 2))
        assert all((view == before).all() for view, before in views)


@settings(max_examples=60)
@given(ACTIONS)
def test_no_two_live_batches_share_memory(actions):
    with filled() as ring:
        use_batches(ring, actions)
        assert pool_of(ring).live_bytes == 0


def test_memory_of_a_batch_that_is_gone_is_used_for_the_next(ring):
    places = [spans(ring.sample(32)) for _ in range(5)]
    assert places.count(places[0]) == 5
    assert pool_of(ring).live_bytes == 0
    assert pool_of(ring).idle_bytes >= 32 * 7000


def test_the_ways_of_reading_share_one_pool(ring):
    refs = np.arange(32)
    where = spans(ring.sample(32))
    for read in (ring.gather, ring.__getitem__, ring.gather_at):
        assert spans(read(refs)) == where
    assert spans(ring.sample(32, device="cpu")) == where


HOLDERS = {
    "an array": lambda batch: batch["image"],
    "a view": lambda batch: batch["image"][3:, ::2],
    "a buffer": lambda batch: memoryview(batch["image"]),
    "a tensor": lambda batch: torch.from_numpy(batch["image"]),
    "a view of a tensor": lambda batch: torch.from_numpy(batch["image"])[2:],
    "the owner": lambda batch: batch["image"].base,
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_what_is_kept_keeps_its_memory_and_no_more(ring, kind):
    batch = ring.sample(32)
    kept = HOLDERS[kind](batch)
    image = span(batch["image"])
    del batch
    assert 32 * 7000 <= pool_of(ring).live_bytes < 33 * 7000
    others = [ring.sample(32) for _ in range(3)]
    assert all(image != span(other["image"]) for other in others)
    del others, kept
    assert pool_of(ring).live_bytes == 0


def test_small_fields_keep_no_large_ones(ring):
    kept = [ring.sample(32)["id"] for _ in range(20)]
    assert pool_of(ring).live_bytes < 20 * 4096
    assert sum(len(ids) for ids in kept) == 640


def test_arrays_begin_at_cache_lines_and_can_be_written(ring):
    for rows in (1, 3, 33):
        batch = ring.sample(rows)
        for value in batch.values_by_field.values():
            assert value.ctypes.data % 64 == 0
            assert value.flags.carray
            value[...] = 1


def pool(row_bytes=1):
    return OutputPool(np.ndarray, ("x",), ((row_bytes,),), (np.dtype(np.uint8),), (row_bytes,))


def test_idle_memory_is_bounded_in_bytes_and_number():
    large = pool(MIB)
    batches = [large.arrays(100) for _ in range(4)]
    batches.append(large.arrays(300))
    del batches
    assert large.live_bytes == 0
    assert large.idle_bytes == 200 * MIB
    small = pool()
    batches = [small.arrays(64) for _ in range(100)]
    assert small.live_bytes == 6400
    del batches
    assert small.idle_bytes == 32 * 64


def test_memory_of_a_size_that_is_no_longer_asked_for_is_let_go():
    made = pool()
    made.arrays(MIB)
    for _ in range(60):
        made.arrays(128)
    assert made.idle_bytes == MIB + 128
    for _ in range(10):
        made.arrays(128)
    assert made.idle_bytes == 128


def test_a_batch_beyond_all_memory_is_an_error_and_takes_none():
    made = pool(MIB)
    for rows in (1 << 40, 1 << 63):
        with pytest.raises(MemoryError):
            made.arrays(rows)
    assert made.live_bytes == made.idle_bytes == 0
    assert made.arrays(0)["x"].shape == (0, MIB)


def test_batches_outlive_their_ring(ring):
    batch = ring.sample(32)
    ring.sample(32)
    made = pool_of(ring)
    assert made.idle_bytes > 0
    ring.close()
    assert made.idle_bytes == 0
    assert is_whole(batch)
    del batch
    assert made.live_bytes == made.idle_bytes == 0


def test_a_batch_may_die_in_any_thread(ring):
    batches = [ring.sample(16) for _ in range(64)]
    threads = [
        threading.Thread(target=lambda: [batches.pop() for _ in range(16)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool_of(ring).live_bytes == 0


def test_a_cycle_that_holds_a_batch_gives_its_memory_back(ring):
    holder = [ring.sample(32)]
    holder.append(holder)
    del holder
    gc.collect()
    assert pool_of(ring).live_bytes == 0


def test_a_forked_child_gives_back_its_own_copy(ring):
    batch = ring.sample(32)
    ring.sample(32)
    before = np.array(batch["image"])
    child = os.fork()
    if child == 0:
        try:
            assert is_whole(batch)
            batch["image"][...] = 77
            assert pool_of(ring).idle_bytes == 0
            del batch
            assert pool_of(ring).live_bytes == 0
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (batch["image"] == before).all()
    others = [ring.sample(32) for _ in range(4)]
    assert all(map(is_whole, others))
    assert not any(share_memory(batch, other) for other in others)


def test_an_interpreter_may_end_with_batches_alive():
    script = """
import atexit, threading
import numpy as np, torch
import pyengine
ring = pyengine.ReplayBuffer({"x": ((300, 100), "uint8"), "y": "int64"}, 64)
ring.extend(x=np.zeros((64, 300, 100), np.uint8), y=np.arange(64))
kept = [ring.sample(32), ring.sample(32, device="cpu")]
loop = [ring.sample(100)]
loop.append(loop)
view = ring.sample(8)["x"][1:]
atexit.register(lambda: kept.append(view.sum()))
threading.Thread(target=lambda: [ring.sample(32) for _ in iter(int, 1)], daemon=True).start()
pyengine.last = ring.sample(256)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=100)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.usefixtures("frequent_switches")
def test_batches_stay_whole_while_others_add_sample_and_restore(tmp_path):
    with filled() as ring:
        saved = save(ring, tmp_path)
        stop, wrong = threading.Event(), []

        def sample(rows, device):
            kept = []
            while not stop.is_set():
                kept.append(ring.sample(rows, device=device))
                if not all(map(is_whole, kept)):
                    wrong.append(kept)
                if len(kept) == 4:
                    del kept[:3]

        def add():
            number = 0
            while not stop.is_set():
                number += 1
                image = np.full((70, 100), number, np.int64).astype(np.uint8)
                ring.add(image=image, half=np.zeros(3, np.uint16), id=number)

        works = [(sample, (16, None)), (sample, (12, "cpu")), (add, ())]
        threads = [threading.Thread(target=work, args=given) for work, given in works]
        for thread in threads:
            thread.start()
        try:
            for _ in range(30):
                assert saved.install(ring) == 64
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not wrong
        assert pool_of(ring).live_bytes == 0
