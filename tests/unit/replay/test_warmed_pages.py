"""Pages that the writer has warmed are mapped without anybody touching them."""

from __future__ import annotations

import threading
import time

from mapped_rings import mapped_ring, path_of, rows

WAIT_SECONDS = 30.0
NAME = "pyengine-warmed"


def wait_until(condition, what):
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def mapped_bytes(path):
    """Bytes of a file's pages that this process has in its page tables."""
    found, is_file = 0, False
    with open("/proc/self/smaps", encoding="utf-8") as lines:
        for line in lines:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                is_file = words[-1] == str(path)
            elif is_file and words[0] == "Rss:":
                found += 1024 * int(words[1])
    return found


def mark(ring, segment):
    storage = ring.storage
    storage.control.mark_verified(0, segment, 0, storage.plan.layout.block_count)


def is_following():
    return any(thread.name == NAME for thread in threading.enumerate())


def test_a_segment_is_mapped_once_all_of_it_was_verified(tmp_path):
    with mapped_ring(tmp_path) as ring:
        sizes = {
            segment: path_of(ring, segment).stat().st_size for _, segment in ring.storage.paths
        }
        some = sorted(sizes)[3]
        mark(ring, some)
        wait_until(lambda: mapped_bytes(path_of(ring, some)) == sizes[some], "it was not mapped")
        other = next(segment for segment in sizes if segment != some)
        assert mapped_bytes(path_of(ring, other)) < sizes[other]
        for segment in sizes:
            mark(ring, segment)
        wait_until(lambda: not is_following(), "the thread did not end")
        assert all(mapped_bytes(path_of(ring, n)) == size for n, size in sizes.items())
        assert ring.gather(ring.refs())["id"].tolist() == list(range(4096))


def test_segments_that_left_the_window_are_not_waited_for(tmp_path):
    with mapped_ring(tmp_path) as ring:
        per_segment = ring.storage.plan.segment_rows
        ring.extend(**rows(range(4096, 4096 + per_segment)))
        assert (0, 0) not in ring.storage.mapped
        ring.storage.core.map_pages(0, 0)
        for _, segment in list(ring.storage.paths):
            mark(ring, segment)
        wait_until(lambda: not is_following(), "the thread did not end")


def test_a_closed_ring_is_not_followed(tmp_path):
    with mapped_ring(tmp_path):
        assert is_following()
    wait_until(lambda: not is_following(), "the thread did not end")


def test_an_eager_restore_needs_nobody_to_follow(tmp_path):
    with mapped_ring(tmp_path, eager=True):
        assert not is_following()
