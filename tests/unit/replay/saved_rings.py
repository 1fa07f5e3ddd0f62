"""A ring's rows as the files and header of a snapshot, without a writer: the images as they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyengine import ReplayBuffer
from pyengine._native.hashing import seal_image
from pyengine.format.buffer_header import BufferHeader, DroppedRun, Extent, LaneRecord
from pyengine.format.segment import set_counts
from pyengine.replay.segment_files import SegmentFile

LINE = 7


@dataclass
class SavedRing:
    """What `install` takes."""

    header: BufferHeader
    files: dict[str, SegmentFile]
    mutable: dict[str, np.ndarray]

    def install(self, ring: ReplayBuffer, **options: Any) -> int:
        return ring.install(self.header, self.files, self.mutable, **options)


def save(ring: ReplayBuffer, directory: Path, *, dropped: Sequence[DroppedRun] = ()) -> SavedRing:
    """Write every segment of the window but those of `dropped`; all of them must be in memory."""
    storage = ring.storage
    assert storage is not None
    control, layout, rows = storage.control, storage.plan.layout, storage.plan.segment_rows
    windows, extents, files = storage.windows(), [], {}
    for lane, (tail, total) in enumerate(windows):
        for segment in range(tail // rows, -(-total // rows)):
            first = max(tail, segment * rows)
            count = min(total, (segment + 1) * rows) - first
            if any(run.lane == lane and run.first_row == first for run in dropped):
                continue
            slot = control.place(lane, segment)
            assert isinstance(slot, int)
            image = bytearray(storage.arena.view(control.slot_offset(slot), layout.file_bytes))
            row_count = min(total - segment * rows, rows)
            set_counts(memoryview(image), layout, row_count)
            checksum = seal_image(image)
            name = f"{lane}-{segment}.seg"
            (directory / name).write_bytes(image)
            record = (LINE, lane, segment * rows, row_count, segment, checksum, layout.file_bytes)
            whole = row_count == rows
            files[name] = SegmentFile(str(directory / name), checksum, record if whole else None)
            extents.append(Extent(lane, first, count, name, first - segment * rows))
    record = ring.header_record()
    header = BufferHeader(
        ring="replay",
        schema=record["schema"],
        capacity=record["capacity"],
        num_lanes=record["num_lanes"],
        segment_rows=record["segment_rows"],
        line=f"{LINE:016x}",
        lanes=tuple(
            LaneRecord(tail, total, control.break_pending(lane))
            for lane, (tail, total) in enumerate(windows)
        ),
        extents=tuple(extents),
        dropped=tuple(dropped),
        sampler=record["sampler"],
        mutable_file=None,
    )
    mutable = {name: array.copy() for name, array in ring.mutable_arrays().items()}
    return SavedRing(header, files, mutable)
