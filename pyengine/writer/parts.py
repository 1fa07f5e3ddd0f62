"""Parts: the published rows of segments that are not full, through a bounce buffer.

A part is a segment file with a run table. One is written for a ring at a cut (in the snapshot
itself) and one when a writer drains (in the pool). The rows are immutable and their slots OPEN, so
they can be copied at leisure; the slots' words are compared again after the copy.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyengine._native import hashing
from pyengine.config import PART_MAX_BYTES
from pyengine.errors import SnapshotFailedError
from pyengine.format.segment import KIND_PART, Run, header_image, plan_layout
from pyengine.fs import durable
from pyengine.writer.ring_view import RingView


@dataclass(frozen=True, slots=True)
class OpenRows:
    """Rows of one lane that lie in one slot."""

    lane: int
    segment: int
    first_row: int
    row_count: int
    slot: int


@dataclass(frozen=True, slots=True)
class PartFile:
    """A durable part: its size, and the XXH3-64 of its header and block table."""

    size_bytes: int
    checksum: int


def spread(ring: RingView, rows: Sequence[OpenRows]) -> Iterator[tuple[OpenRows, ...]]:
    """Yield the rows in groups that each become one part, the order kept."""
    limit = max(1, PART_MAX_BYTES // ring.schema.row_bytes)
    group: list[OpenRows] = []
    count = 0
    for run in rows:
        if group and count + run.row_count > limit:
            yield tuple(group)
            group, count = [], 0
        group.append(run)
        count += run.row_count
    if group:
        yield tuple(group)


def write_part(
    ring: RingView, rows: Sequence[OpenRows], *, directory: str, name: str, line: int
) -> PartFile:
    """Write one part under a new name and fsync it, not its directory.

    For a worker thread. Raises SnapshotFailedError where a slot was given to other rows while it
    was copied, NoSpaceError, OSError.
    """
    count = sum(run.row_count for run in rows)
    layout = plan_layout(ring.schema.append_fields, count, run_capacity=len(rows))
    runs = [Run(run.lane, run.first_row, run.row_count) for run in rows]
    # Never closed by hand: an exception's traceback may still hold a view when it travels on.
    image = memoryview(mmap.mmap(-1, layout.file_bytes))
    image[: layout.header_bytes] = header_image(layout, line=line, kind=KIND_PART, runs=runs)
    at = 0
    for run in rows:
        with ring.image(run.slot) as slot:
            row = run.first_row - run.segment * ring.segment_rows
            for source, target in zip(ring.layout.fields, layout.fields, strict=True):
                size = run.row_count * source.row_bytes
                begin = source.offset + row * source.row_bytes
                to = target.offset + at * target.row_bytes
                image[to : to + size] = slot[begin : begin + size]
        at += run.row_count
    for run in rows:
        if ring.control.slot_word(run.slot)[0] != ring.key(run.lane, run.segment):
            raise SnapshotFailedError(
                f"ring {ring.name}: rows of lane {run.lane} went away while they were copied"
            )
    checksum = hashing.seal_image(image)
    durable.write_file(directory, name, [image], direct=True, hashed=False)
    return PartFile(layout.file_bytes, checksum)
