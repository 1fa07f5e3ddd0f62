"""Rings whose segments live in files beyond a limit of memory, and a look at where they are."""

from __future__ import annotations

import numpy as np
from mapped_rings import new_ring, rows
from pool_owner import PoolOwner

R = 512
"""Rows of a segment of `new_ring`, which has 8 of them."""


def slot_bytes(ring):
    return ring._plan.layout.file_bytes


def limited(slots=4, capacity=4096):
    with new_ring(capacity) as whole:
        size = slot_bytes(whole)
    return new_ring(capacity, memory_limit=slots * size)


def is_file(ring, segment, lane=0):
    return isinstance(ring.control.place(lane, segment), tuple)


def check(ring, first, end):
    """Every row, by ref and by position, is the one that was added."""
    refs = ring.refs()
    assert refs.tolist() == list(range(first, end))
    expected = rows(refs)
    batch = ring.gather(refs)
    for name in ("id", "obs"):
        np.testing.assert_array_equal(batch[name], expected[name], strict=True)
    ids = np.asarray(ring.column("id"))
    assert sorted(ids[ids > 0].tolist()) == [ref for ref in refs if ref]


class Clock:
    """In place of the module `time`: a slice of waiting takes a second."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += 1.0


def persisted(tmp_path, segments=3, **options):
    """A limited ring of six slots, `segments` of them PERSISTED, nothing spilled."""
    ring = limited(6)
    owner = PoolOwner(ring, tmp_path, **options)
    ring.extend(**rows(np.arange(segments * R)))
    owner.persist()
    return ring, owner
