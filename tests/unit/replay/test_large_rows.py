"""Rows so large that other stores write them than small ones: whole, and in their place."""

from __future__ import annotations

import numpy as np

from pyengine import ReplayBuffer

ROW_BYTES = 84 * 84
BATCH = 256


def test_rows_are_whole_whichever_stores_they_are_written_by():
    """Streaming and cached stores take turns, in bouts of 64 MiB until both are measured."""
    rng = np.random.default_rng(1)
    frames = rng.integers(0, 256, (BATCH + 1, ROW_BYTES), np.uint8)
    fields = {"frame": ((ROW_BYTES,), "uint8"), "number": "int64"}
    with ReplayBuffer(fields, 4 * BATCH, seed=1) as ring:
        for turn in range(200_000_000 // (BATCH * ROW_BYTES)):
            rows = frames[turn % 2 : turn % 2 + BATCH]  # another alignment each time
            numbers = np.arange(turn * BATCH, (turn + 1) * BATCH)
            if turn % 3:
                ring.extend(frame=rows, number=numbers)
            else:
                for row, number in zip(rows, numbers, strict=True):
                    ring.add(frame=row, number=number)
            if turn % 7 == 0:
                newest = ring[ring.refs()[-BATCH:]]
                np.testing.assert_array_equal(newest["number"], numbers)
                np.testing.assert_array_equal(newest["frame"], rows)
