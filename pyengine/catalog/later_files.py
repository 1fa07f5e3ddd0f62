"""The files in which rows of one ring lie, wherever in a run: its pool, snapshots, quarantine.

Each file says by its name under which line it was written or taken over, and proves itself; what is
wrong with one rules out that one alone. Full segments are told by their names, parts by the run
tables in their headers; a file's rows are read once it is wanted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyengine.catalog.pool import pool_directory
from pyengine.catalog.verify import find_bad_blocks, read_segment_header, verify_segment
from pyengine.errors import DamageError, FormatVersionError
from pyengine.format import names
from pyengine.format.buffer_header import Extent
from pyengine.format.frame import read_into
from pyengine.format.segment import KIND_SEGMENT, SegmentHeader, block_rows
from pyengine.fs import door
from pyengine.fs.beneath import open_beneath

Limits = Mapping[int, int | None]
"""By line, oldest first, the row of a lane from which on its files do not count; None: all do."""


@dataclass(frozen=True, slots=True)
class LaterFile:
    """A verified file. `name` says what it is; `checksum` is that of its header and block table, as
    a manifest would record it. `is_whole`: it stands for a full segment."""

    path: str
    name: names.PoolName | names.PartName
    header: SegmentHeader
    checksum: int
    is_whole: bool

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self.header.file_bytes


@dataclass(frozen=True, slots=True)
class DamagedRows:
    """Rows [first_row, end) of a lane whose values of one field (by number) are damaged."""

    lane: int
    first_row: int
    end: int
    field: int


@dataclass(frozen=True, slots=True)
class _Found:
    """A file by its name: `entry` is its path below `directory`."""

    directory: str
    entry: str
    name: names.PoolName | names.PartName

    @property
    def path(self) -> str:
        return os.path.join(self.directory, self.entry)


@dataclass
class _Known:
    """What reading a file has shown; links of one file share it."""

    header: SegmentHeader | None = None
    checksum: int | None = None
    error: str | None = None


class RingFiles:
    """The files of one ring: in the pool, and in the directories of `snapshots`. `files` are those
    that extents name, by their paths; `pool_lines` the lines that files of the pool are of."""

    def __init__(
        self, run_dir: str, ring: str, segment_rows: int, snapshots: Sequence[str]
    ) -> None:
        self.files: dict[str, LaterFile] = {}
        self._segment_rows = segment_rows
        self._segments: dict[int, dict[int, list[_Found]]] = {}
        self._parts: list[_Found] = []
        self._known: dict[tuple[int, int] | str, _Known] = {}
        self._list(pool_directory(run_dir, ring), "", "")
        self.pool_lines = {found.name.line for found in self._all()}
        for snapshot in snapshots:
            self._list(snapshot, f"{names.ring_directory(ring)}/", names.LINK_PREFIX)

    def chain(self, lane: int, row: int, limits: Limits) -> list[Extent]:
        """Return extents that go on at `row` without a gap; the first may begin before it."""
        found = []
        while (extent := self._rows_from(lane, row, limits)) is not None:
            found.append(extent)
            row = extent.first_row + extent.row_count
        return found

    def starts_after(self, lane: int, row: int, limits: Limits) -> list[int]:
        """Return the first rows of full segments beyond `row` that have none before them."""
        firsts = {
            first
            for first, found in self._segments.get(lane, {}).items()
            if first > row
            and any(_counts(one, first + self._segment_rows - 1, limits) for one in found)
        }
        return sorted(first for first in firsts if first - self._segment_rows not in firsts)

    def known_end(self, lane: int, limits: Limits) -> int:
        """Return the row of a lane up to which any file says it goes, whole or not."""
        return max((end for _, end in self._spans(lane, limits)), default=0)

    def has_rows_after(self, lane: int, row: int, line: int) -> bool:
        """Whether the line went on beyond `row`, or has a part of which nobody can say."""
        unread = any(one.name.line == line and self._header(one) is None for one in self._parts)
        return unread or self.known_end(lane, {line: None}) > row

    def has_line(self, line: int) -> bool:
        """Whether there are files of a line."""
        return any(found.name.line == line for found in self._all())

    def was_written_under(self, line: int, former: int, lane: int, row: int) -> bool:
        """Whether a file of `line` was written under `former`, and has rows of a lane up to `row`
        or beyond: then the history of the one is that of the other until there."""
        for found in self._all():
            name = found.name
            ends_before = isinstance(name, names.PoolName) and (
                name.lane != lane or name.first_row + name.row_count < row
            )
            if name.line != line or ends_before:
                continue
            header = self._header(found)
            for run in () if header is None or header.line != former else header.runs:
                if run.lane == lane and run.first_row + run.row_count >= row:
                    return True
        return False

    def damaged_rows(self, snapshot: str) -> list[DamagedRows]:
        """Return the rows that lie in damaged blocks of a snapshot's parts, wherever that is now.

        A part whose header is damaged has none: nobody could ever restore from it.
        """
        found: list[DamagedRows] = []
        for part in self._parts:
            header = self._header(part) if _is_of(part, snapshot) else None
            if header is not None and self._open(part, is_whole=False) is None:
                found += _damaged_rows(part, header)
        return found

    def has_place_empty(self, extent: Extent, damaged: DamagedRows) -> bool:
        """Whether the file of an extent has nothing but zeros for a field of damaged rows."""
        first = max(extent.first_row, damaged.first_row)
        end = min(extent.first_row + extent.row_count, damaged.end)
        if extent.lane != damaged.lane or first >= end:
            return False
        file = self.files[extent.file]
        region = file.header.fields[damaged.field]
        row = extent.file_row + first - extent.first_row
        fd = open_beneath(*os.path.split(file.path))
        try:
            data = memoryview(bytearray((end - first) * region.row_bytes))
            read_into(fd, data, region.offset + row * region.row_bytes, file.path)
        finally:
            door.active.close(fd)
        return not any(data)

    def why_not(self, lane: int, row: int, limits: Limits) -> str:
        """Return why no file gives a row."""
        first = row - row % self._segment_rows
        suspects = [*self._segments.get(lane, {}).get(first, ()), *self._parts]
        errors = [
            known.error
            for one in suspects
            if _counts(one, row, limits) and (known := self._look(one)).error is not None
        ]
        return "; ".join(dict.fromkeys(errors)) or f"no file has row {row}"

    def _list(self, root: str, below: str, prefix: str) -> None:
        for entry in sorted(_listed(os.path.join(root, below))):
            text = entry.removeprefix(prefix) if entry.startswith(prefix) else ""
            name = names.parse_pool_name(text) or names.parse_part_name(text)
            if isinstance(name, names.PartName):
                self._parts.append(_Found(root, below + entry, name))
            elif name is not None and name.row_count == self._segment_rows:
                of_lane = self._segments.setdefault(name.lane, {})
                of_lane.setdefault(name.first_row, []).append(_Found(root, below + entry, name))

    def _all(self) -> Iterator[_Found]:
        for of_lane in self._segments.values():
            for found in of_lane.values():
                yield from found
        yield from self._parts

    def _rows_from(self, lane: int, row: int, limits: Limits) -> Extent | None:
        """Return an extent that goes on at `row`: of a full segment with the rows before it, else
        of the file that reaches furthest; None where nobody has the row."""
        rows = self._segment_rows
        first = row - row % rows
        # An older line's first: no restore has come between the rows and the file.
        segments = [
            found
            for line in limits
            for found in self._segments.get(lane, {}).get(first, ())
            if found.name.line == line
        ]
        for found in segments:
            if _counts(found, first + rows - 1, limits):
                file = self._open(found, is_whole=True)
                if file is not None and _is_full(file.header, lane, first, rows):
                    return Extent(lane, first, rows, found.path, 0)
        reaches = []
        for found in (*segments, *self._parts):
            for begin, end, file_row in self._runs(found, lane, limits):
                # A segment that is complete has a file of its own: others give all but one row.
                end = min(end, first + rows - 1)
                if begin <= row < end:
                    reaches.append((end, file_row + row - begin, found))
        for end, file_row, found in sorted(reaches, key=lambda reach: reach[0], reverse=True):
            if self._open(found, is_whole=False) is not None:
                return Extent(lane, row, end - row, found.path, file_row)
        return None

    def _spans(self, lane: int, limits: Limits) -> Iterator[tuple[int, int]]:
        for first, segments in self._segments.get(lane, {}).items():
            for found in segments:
                if _counts(found, first, limits):
                    limit = limits[found.name.line]
                    end = first + self._segment_rows
                    yield first, end if limit is None else min(end, limit)
        for found in self._parts:
            for begin, end, _ in self._runs(found, lane, limits):
                yield begin, end

    def _runs(self, found: _Found, lane: int, limits: Limits) -> Iterator[tuple[int, int, int]]:
        """Yield (first row, end, row in the file) of a lane's rows that count in a file."""
        if found.name.line not in limits:
            return
        limit = limits[found.name.line]
        header = self._header(found)
        at = 0
        for run in () if header is None else header.runs:
            end = run.first_row + run.row_count
            end = end if limit is None else min(end, limit)
            if run.lane == lane and run.first_row < end:
                yield run.first_row, end, at
            at += run.row_count

    def _header(self, found: _Found) -> SegmentHeader | None:
        """Return a file's header once it and the block table are proven; None: they are bad."""
        known = self._look(found)
        if known.header is None and known.error is None:
            try:
                known.header = read_segment_header(found.directory, found.entry)
            except (DamageError, FormatVersionError, FileNotFoundError) as error:
                known.error = str(error)
        return known.header

    def _open(self, found: _Found, *, is_whole: bool) -> LaterFile | None:
        known = self._look(found)
        if known.error is None and known.checksum is None:
            try:
                known.header, known.checksum = verify_segment(found.directory, found.entry)
            except (DamageError, FormatVersionError, FileNotFoundError) as error:
                self._header(found)  # what it should have is known all the same
                known.error = str(error)
        if known.error is not None or known.header is None or known.checksum is None:
            return None
        file = LaterFile(found.path, found.name, known.header, known.checksum, is_whole)
        self.files[found.path] = file
        return file

    def _look(self, found: _Found) -> _Known:
        try:
            status = os.lstat(found.path)
        except FileNotFoundError:
            return self._known.setdefault(found.path, _Known())
        return self._known.setdefault((status.st_dev, status.st_ino), _Known())


def _counts(found: _Found, row: int, limits: Limits) -> bool:
    """Whether a file counts at a row: its line is of the history, and went on until there."""
    if found.name.line not in limits:
        return False
    limit = limits[found.name.line]
    return limit is None or row < limit


def _is_of(found: _Found, snapshot: str) -> bool:
    name = names.parse_quarantine_name(os.path.basename(found.directory))
    return name is not None and name.text == snapshot


def _damaged_rows(part: _Found, header: SegmentHeader) -> Iterator[DamagedRows]:
    fd = open_beneath(part.directory, part.entry)
    try:
        blocks = find_bad_blocks(fd, header, part.path)
    finally:
        door.active.close(fd)
    for block in blocks:
        rows = block_rows(header, block)
        field = max(i for i, region in enumerate(header.fields) if region.first_block <= block)
        at = 0
        for run in header.runs:
            first, end = max(rows.start, at), min(rows.stop, at + run.row_count)
            if first < end:
                moved = run.first_row - at
                yield DamagedRows(run.lane, first + moved, end + moved, field)
            at += run.row_count


def _is_full(header: SegmentHeader, lane: int, first: int, rows: int) -> bool:
    run = header.runs[0]
    counts = (header.row_capacity, header.row_count, run.row_count)
    is_place = (run.lane, run.first_row) == (lane, first)
    return header.kind == KIND_SEGMENT and is_place and counts == (rows, rows, rows)


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
