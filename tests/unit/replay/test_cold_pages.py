"""Verified rows that the page cache has dropped are asked for at once, not page by page."""

from __future__ import annotations

import resource

import numpy as np
import pytest
from mapped_rings import forget_pages, mapped_ring, path_of


def forget(ring):
    """Leave nothing of the files in memory; their blocks stay verified."""
    storage = ring.storage
    for lane, segment in storage.mapped:
        storage.core.forget_segment(lane, segment)
        storage.control.mark_verified(lane, segment, 0, storage.plan.layout.block_count)
        forget_pages(path_of(ring, segment, lane))


def waits_of(ring, refs):
    """Gather rows; return how often the thread waited for a page to be read."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    assert ring.gather(refs)["id"].tolist() == refs.tolist()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before


def test_a_read_after_one_that_waited_asks_for_all_of_its_pages_first(tmp_path):
    with mapped_ring(tmp_path) as ring:
        refs = ring.refs()[::8]
        np.testing.assert_array_equal(ring.gather(refs)["id"], refs)
        for _ in range(40):  # whatever an earlier test of this thread has met
            waits_of(ring, refs)
        forget(ring)
        alone = waits_of(ring, refs)
        if alone < 50:
            pytest.skip("this file system keeps pages that nobody needs")
        forget(ring)
        assert waits_of(ring, refs) < alone / 4


def test_cold_reads_do_not_wait_for_every_page_now_and_then_to_see_that_they_are_cold(tmp_path):
    with mapped_ring(tmp_path) as ring:
        refs = ring.refs()[::8]
        np.testing.assert_array_equal(ring.gather(refs)["id"], refs)
        for _ in range(40):
            waits_of(ring, refs)
        waits = []
        for _ in range(40):
            forget(ring)
            waits.append(waits_of(ring, refs))
        if waits[0] < 50:
            pytest.skip("this file system keeps pages that nobody needs")
        assert max(waits[1:]) < waits[0] / 4


def test_a_thread_whose_reads_wait_no_more_stops_asking(tmp_path):
    with mapped_ring(tmp_path) as ring:
        refs = ring.refs()[::8]
        np.testing.assert_array_equal(ring.gather(refs)["id"], refs)
        for _ in range(40):
            waits_of(ring, refs)
        forget(ring)
        alone = waits_of(ring, refs)
        if alone < 50:
            pytest.skip("this file system keeps pages that nobody needs")
        for _ in range(40):  # of them all but the first few find the pages in memory
            waits_of(ring, refs)
        forget(ring)
        assert waits_of(ring, refs) > alone / 2
