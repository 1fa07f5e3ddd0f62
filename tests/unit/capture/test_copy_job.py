"""The native copy of many ranges, held against slices of bytes."""

from __future__ import annotations

import random
import threading
from array import array

import numpy as np
import pytest

from pyengine._native.copying import CopyJob

CHUNK = 1 << 20


def address(memory):
    return memory.ctypes.data


class Ranges:
    """Random ranges of a source, to be laid one behind the other, with holes, into a target."""

    def __init__(self, seed, sizes):
        rng = random.Random(seed)
        self.source = np.random.default_rng(seed).integers(0, 256, 1 << 16, np.uint8)
        self.source = np.tile(self.source, 1 + max(sizes, default=0) // len(self.source) + 1)
        self.picks, end = [], rng.randrange(64)
        for size in sizes:
            begin = rng.randrange(len(self.source) - size + 1)
            self.picks.append((end, begin, size))
            end += size + rng.randrange(100)
        self.target = np.zeros(end + 1, np.uint8)

    def job(self):
        tables = zip(*((t, s, size) for t, s, size in self.picks), strict=True)
        targets, sources, sizes = tables if self.picks else ((), (), ())
        return CopyJob(
            array("Q", [address(self.target) + at for at in targets]),
            array("Q", [address(self.source) + at for at in sources]),
            array("Q", sizes),
        )

    def expected(self):
        """Return what a plain loop over slices makes of the target."""
        target = bytearray(len(self.target))
        for at, begin, size in self.picks:
            target[at : at + size] = self.source[begin : begin + size].tobytes()
        return bytes(target)


def some_sizes(seed):
    rng = random.Random(seed)
    kinds = [lambda: rng.randrange(200), lambda: rng.randrange(3000, 6000)]
    kinds.append(lambda: rng.randrange(CHUNK - 70, 3 * CHUNK))
    return [rng.choice(kinds)() for _ in range(rng.randrange(1, 40))]


@pytest.mark.parametrize("seed", range(12))
def test_every_byte_lands_and_no_other_is_touched(seed):
    ranges = Ranges(seed, some_sizes(seed))
    job = ranges.job()
    assert job.size_bytes == sum(size for *_, size in ranges.picks)
    job.work()
    assert job.wait()
    assert ranges.target.tobytes() == ranges.expected()


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1])
def test_sizes_at_the_borders_are_whole(size):
    for seed in range(4):
        ranges = Ranges(seed, [size, 3, size])
        job = ranges.job()
        job.work()
        assert job.wait()
        assert ranges.target.tobytes() == ranges.expected()


def test_nothing_to_copy_is_done_at_once():
    for ranges in (Ranges(0, []), Ranges(0, [0, 0])):
        job = ranges.job()
        assert job.wait()
        job.work()
        assert job.wait()
        assert not ranges.target.any()


def test_threads_share_one_job_and_each_sees_its_end():
    ranges = Ranges(5, [7 * CHUNK + 11, 300, 9 * CHUNK, 77])
    job, seen = ranges.job(), []

    def share():
        job.work()
        assert job.wait()
        seen.append(ranges.target.tobytes() == ranges.expected())

    threads = [threading.Thread(target=share) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4


def test_a_stopped_job_ends_and_says_that_it_is_not_whole():
    ranges = Ranges(6, [5 * CHUNK])
    job = ranges.job()
    job.stop()
    job.work()
    assert not job.wait()
    assert not ranges.target.any()


def test_a_job_that_was_whole_before_it_was_stopped_stays_whole():
    ranges = Ranges(7, [5 * CHUNK])
    job = ranges.job()
    job.work()
    job.stop()
    job.stop()
    assert job.wait()


def test_a_job_that_is_stopped_while_others_copy_ends_for_all():
    for seed in range(20):
        ranges = Ranges(seed, [30 * CHUNK])
        job = ranges.job()
        thread = threading.Thread(target=job.work)
        thread.start()
        job.stop()
        is_whole = job.wait()
        copied = ranges.target.tobytes()  # nobody writes any more
        thread.join()
        assert ranges.target.tobytes() == copied
        if is_whole:
            assert copied == ranges.expected()


def test_tables_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="for each range"):
        CopyJob(array("Q", [1]), array("Q", []), array("Q", [1]))


def test_copies_are_whole_whichever_stores_they_are_made_by():
    """Streaming and cached stores take turns, in bouts of 64 MiB until both are measured."""
    for seed in range(4):
        ranges = Ranges(seed, [48 * CHUNK, 1, 4097, 2 * CHUNK - 5])
        job = ranges.job()
        thread = threading.Thread(target=job.work)
        thread.start()
        job.work()
        assert job.wait()
        thread.join()
        assert ranges.target.tobytes() == ranges.expected()
