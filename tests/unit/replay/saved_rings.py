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
from pyengine.format.descriptor import RingCut
from pyengine.format.segment import set_counts
from pyengine.replay.segment_files import SegmentFile
from pyengine.writer.extents import pieces_of

LINE = 7


@dataclass
class SavedRing:
    """What `install` takes."""

    header: BufferHeader
    files: dict[str, SegmentFile]
    mutable: dict[str, np.ndarray]

    def install(self, ring: ReplayBuffer, **options: Any) -> int:
        return ring.install(self.header, self.files, self.mutable, **options)


def save(
    ring: ReplayBuffer, directory: Path, *, dropped: Sequence[DroppedRun] | None = None
) -> SavedRing:
    """Write every segment of the window that is in memory; mapped ones are named where they lie.

    `dropped` rows (default: those of the ring) are in no extent.
    """
    storage = ring.storage
    assert storage is not None
    control, layout, rows = storage.control, storage.plan.layout, storage.plan.segment_rows
    gone = tuple(ring.dropped if dropped is None else dropped)
    lanes = tuple(
        LaneRecord(tail, total, control.break_pending(lane))
        for lane, (tail, total) in enumerate(storage.windows())
    )
    extents, files = [], {}
    cut = RingCut("replay", lanes, ring.header_record(), dropped=gone)
    for piece in pieces_of(cut, rows):
        lane, segment = piece.lane, piece.segment
        name = f"{lane}-{segment}.seg"
        begin = segment * rows
        extents.append(
            Extent(lane, piece.first_row, piece.row_count, name, piece.first_row - begin)
        )
        place = control.place(lane, segment)
        if isinstance(place, tuple):
            files[name] = SegmentFile(storage.paths[lane, segment], place[5], place)
        elif name not in files:
            assert place is not None
            image = bytearray(storage.arena.view(control.slot_offset(place), layout.file_bytes))
            row_count = min(lanes[lane].total_count - begin, rows)
            set_counts(memoryview(image), layout, row_count)
            checksum = seal_image(image)
            (directory / name).write_bytes(image)
            record = (LINE, lane, begin, row_count, segment, checksum, layout.file_bytes)
            whole = row_count == rows
            files[name] = SegmentFile(str(directory / name), checksum, record if whole else None)
    record = ring.header_record()
    header = BufferHeader(
        ring="replay",
        schema=record["schema"],
        capacity=record["capacity"],
        num_lanes=record["num_lanes"],
        segment_rows=record["segment_rows"],
        line=f"{LINE:016x}",
        lanes=lanes,
        extents=tuple(extents),
        dropped=gone,
        sampler=record["sampler"],
        mutable_file=None,
    )
    mutable = {name: array.copy() for name, array in ring.mutable_arrays().items()}
    return SavedRing(header, files, mutable)
