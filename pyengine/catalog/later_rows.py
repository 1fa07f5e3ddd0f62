"""Rows that a run added after its newest snapshot, as the files of its pool tell.

A dead trainer's writer has persisted them: full segments as they sealed, open rows in parts as it
drained. They belong to the newest line that grew from the snapshot: the snapshot's own, or one that
a restore of it has opened since. A line without later rows was opened by a restore that failed or
got no further; one whose files do not reach its own start by a restore that could not make it
durable, and took the files' names back: an older one counts then.

What is taken is contiguous, lane by lane, and verified to the last byte: a file that is damaged or
missing ends a lane, unless what follows it fills the window alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.lines import Line, read_lines
from pyengine.catalog.pool import pool_directory
from pyengine.catalog.verify import verify_segment
from pyengine.errors import DamageError, FormatVersionError, RestoreError
from pyengine.events import logger
from pyengine.format import names
from pyengine.format.buffer_header import BufferHeader, DroppedRun, Extent, LaneRecord
from pyengine.format.segment import KIND_SEGMENT, SegmentHeader

_RunT = TypeVar("_RunT", Extent, DroppedRun)


@dataclass(frozen=True, slots=True)
class LaterFile:
    """A verified file of the pool. `name` says where it lies and, of a full segment, what it holds;
    `checksum` is that of its header and block table, as a manifest would record it."""

    directory: str
    name: names.PoolName | names.PartName
    header: SegmentHeader
    checksum: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LaterRows:
    """A ring as it was when the run ended: a header that names files of the snapshot and of the
    pool, the latter in `files` by name, and how many rows the snapshot did not know (`added`).

    `replaced` are the snapshot's extents of rows that a full segment of a restored line gives
    instead. That restore may have dropped some of them, for damage of the extents' files: their
    places in the segment are empty then. So the extents are to be verified, and what is damaged in
    them is lost."""

    header: BufferHeader
    files: dict[str, LaterFile]
    added: int
    replaced: tuple[Extent, ...] = ()


def find_later_rows(
    run_dir: str, info: SnapshotInfo, headers: Mapping[str, BufferHeader]
) -> dict[str, LaterRows]:
    """Return, by ring, what the newest line that grew from the snapshot holds beyond it.

    `headers` are those of the snapshot. Rings without later rows are left out. Reads the files
    whole. Raises OSError; damage ends a lane and is logged.
    """
    for line in _lines_of(run_dir, info):
        found = {ring: _extend(run_dir, ring, header, line) for ring, header in headers.items()}
        later = {ring: rows for ring, rows in found.items() if rows.added}
        starts = line.start_rows
        if later and all(_reaches(found[ring].header, starts.get(ring, ())) for ring in found):
            return later
    return {}


def _lines_of(run_dir: str, info: SnapshotInfo) -> Iterator[Line]:
    """Yield the lines that grew from the snapshot, the newest first, its own last."""
    lines = read_lines(run_dir, _tell)
    grown = [line for line in lines.values() if line.parent == info.name]
    yield from sorted(grown, key=lambda line: line.order, reverse=True)
    own = lines.get(info.line)
    if own is not None:
        # Where it started is long past: the snapshot holds those rows.
        yield replace(own, start_rows={})


def _tell(error: RestoreError | OSError) -> None:
    logger.error("rows that came after the snapshot may stay behind: %s", error)


def _reaches(header: BufferHeader, start_rows: Iterable[int]) -> bool:
    return all(
        lane.total_count >= start for lane, start in zip(header.lanes, start_rows, strict=False)
    )


def _extend(run_dir: str, ring: str, header: BufferHeader, line: Line) -> LaterRows:
    """Return the ring with what the pool has of a line beyond the snapshot's rows."""
    pool = _Pool(pool_directory(run_dir, ring), line.id, header)
    extents: list[Extent] = []
    lanes = []
    for index in range(header.num_lanes):
        lane, found = _extend_lane(pool, header, index)
        lanes.append(lane)
        extents += found
    extended = replace(
        header,
        lanes=tuple(lanes),
        extents=tuple(_within(extents, lanes)),
        dropped=tuple(_within(header.dropped, lanes)),
    )
    used = {extent.file for extent in extended.extents}
    added = sum(
        new.total_count - max(old.total_count, new.tail)
        for new, old in zip(lanes, header.lanes, strict=True)
    )
    files = {name: file for name, file in pool.files.items() if name in used}
    is_restored = names.line_text(line.id) != header.line
    replaced = tuple(_replaced(header, extended, files)) if is_restored else ()
    return LaterRows(extended, files, added, replaced)


def _replaced(
    header: BufferHeader, extended: BufferHeader, later: Mapping[str, LaterFile]
) -> Iterator[Extent]:
    full = [extent for extent in extended.extents if extent.file in later]
    for former in _within(header.extents, extended.lanes):
        if any(
            extent.lane == former.lane
            and extent.first_row <= former.first_row < extent.first_row + extent.row_count
            for extent in full
        ):
            yield former


def _extend_lane(pool: _Pool, header: BufferHeader, index: int) -> tuple[LaneRecord, list[Extent]]:
    """Return a lane as it was at the end, and the extents of its rows."""
    lane = header.lanes[index]
    window = header.capacity // header.num_lanes
    chain = pool.chain(index, lane.total_count)
    # A full segment takes the place of the parts that held its first rows.
    first = chain[0].first_row if chain else lane.total_count
    kept = [e for e in header.extents if e.lane == index and e.first_row < first]
    tail, total = lane.tail, _end(chain, lane.total_count)
    for start in pool.starts_after(index, total):
        # Rows between may have left the window: then those that follow fill it, but for the open
        # segment that a dead machine lost.
        later = pool.chain(index, start)
        if _end(later, start) - start >= window - 2 * header.segment_rows:
            kept, chain, tail, total = [], later, start, _end(later, start)
    grew = total > lane.total_count
    tail = max(tail, total - window)
    return LaneRecord(tail, total, lane.break_pending or grew), [*kept, *chain]


def _end(chain: list[Extent], default: int) -> int:
    return chain[-1].first_row + chain[-1].row_count if chain else default


def _within(runs: Iterable[_RunT], lanes: Sequence[LaneRecord]) -> Iterator[_RunT]:
    """Yield what of the runs lies in the windows."""
    for run in runs:
        lane = lanes[run.lane]
        cut = max(0, lane.tail - run.first_row)
        if cut >= run.row_count:
            continue
        if isinstance(run, Extent):
            run = replace(run, file_row=run.file_row + cut)
        yield replace(run, first_row=run.first_row + cut, row_count=run.row_count - cut)


class _Pool:
    """The files of one line in a ring's pool; each is verified when it is first wanted."""

    def __init__(self, directory: str, line: int, header: BufferHeader) -> None:
        self._directory = directory
        self._segment_rows = header.segment_rows
        self.files: dict[str, LaterFile] = {}
        self._bad: set[str] = set()
        self._segments: dict[tuple[int, int], list[names.PoolName]] = {}
        self._parts: list[names.PartName] = []
        for entry in sorted(_listed(directory)):
            segment, part = names.parse_pool_name(entry), names.parse_part_name(entry)
            if segment is not None and segment.line == line:
                self._segments.setdefault((segment.lane, segment.first_row), []).append(segment)
            elif part is not None and part.line == line:
                self._parts.append(part)

    def chain(self, lane: int, row: int) -> list[Extent]:
        """Return extents that go on at `row` without a gap; the first may begin before it."""
        found = []
        while (extent := self._rows_from(lane, row)) is not None:
            found.append(extent)
            row = extent.first_row + extent.row_count
        return found

    def starts_after(self, lane: int, row: int) -> list[int]:
        """Return the first rows of full segments beyond `row` that have none before them."""
        firsts = {first for of_lane, first in self._segments if of_lane == lane and first > row}
        return sorted(first for first in firsts if first - self._segment_rows not in firsts)

    def _rows_from(self, lane: int, row: int) -> Extent | None:
        """Return an extent that goes on at `row`: of a full segment with the rows before it, else
        the one of a part that reaches furthest; None where the pool has none."""
        first = row - row % self._segment_rows
        for name in self._segments.get((lane, first), ()):
            file = self._open(name)
            if file is not None and _is_full(file.header, lane, first, self._segment_rows):
                return Extent(lane, first, self._segment_rows, name.text, 0)
        found = [extent for part in self._parts for extent in self._in_part(part, lane, row)]
        return max(found, key=lambda extent: extent.row_count, default=None)

    def _in_part(self, name: names.PartName, lane: int, row: int) -> Iterator[Extent]:
        file = self._open(name)
        begin = 0
        for run in () if file is None else file.header.runs:
            if run.lane == lane and run.first_row <= row < run.first_row + run.row_count:
                skipped = row - run.first_row
                yield Extent(lane, row, run.row_count - skipped, name.text, begin + skipped)
            begin += run.row_count

    def _open(self, name: names.PoolName | names.PartName) -> LaterFile | None:
        known = self.files.get(name.text)
        if known is not None or name.text in self._bad:
            return known
        try:
            header, checksum = verify_segment(self._directory, name.text)
        except (DamageError, FormatVersionError, FileNotFoundError) as error:
            self._bad.add(name.text)
            logger.error("rows after the snapshot end before this file: %s", error)
            return None
        file = LaterFile(self._directory, name, header, checksum, header.file_bytes)
        self.files[name.text] = file
        return file


def _is_full(header: SegmentHeader, lane: int, first: int, rows: int) -> bool:
    run = header.runs[0]
    counts = (header.row_capacity, header.row_count, run.row_count)
    is_place = (run.lane, run.first_row) == (lane, first)
    return header.kind == KIND_SEGMENT and is_place and counts == (rows, rows, rows)


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
