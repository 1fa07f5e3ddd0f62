"""A snapshot's segment files, proven before a value of them is used.

First the header and block table, by the checksum that the manifest records; then, for rows that are
copied, the blocks that they lie in, each once however many lanes share it. What is checked or
copied here is read, not mapped: a bad sector or a file cut short is an error. A mismatch is read
twice, past the page cache where the kernel lets go of it, before it is called damage.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyengine._native.hashing import xxh3_64
from pyengine._native.mapping import Mapping as MemoryMapping
from pyengine.config import PAGE_BYTES
from pyengine.errors import DamageError, TruncatedFileError
from pyengine.format.frame import FullHeaders, read_frame, read_full_frame, read_into
from pyengine.format.segment import (
    KIND_SEGMENT,
    FieldRegion,
    SegmentHeader,
    block_hashes,
    iter_blocks,
    parse_header,
    verify_checksum,
)
from pyengine.fs import door
from pyengine.fs.beneath import ask_ahead, drop_cache, open_regular
from pyengine.replay.faults import is_unreadable, unreadable_error
from pyengine.replay.plan import RingPlan

if TYPE_CHECKING:
    from pyengine._native.control import FileRecordTuple

_AHEAD_MAX_BYTES = 256 * 1024 * 1024
"""Of one part; its length is not verified yet, and a sparse file may be of any."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A file of a snapshot: where it lies, its recorded checksum, and its pool identity if it has
    one (a full segment's new links are made from that)."""

    path: str
    checksum: int
    record: FileRecordTuple | None


@dataclass(frozen=True, slots=True)
class BadBlock:
    """A block whose rows cannot be had: why, and which rows of the file."""

    error: Exception
    rows: range


@dataclass(frozen=True, slots=True)
class _Block:
    """A block as it was read; `error` says why its bytes are worthless."""

    number: int
    data: memoryview
    error: Exception | None


class OpenFile:
    """One file whose header and block table are proven. Made by SegmentFiles, which owns `fd`."""

    def __init__(self, fd: int, header: SegmentHeader, hashes: tuple[int, ...], path: str) -> None:
        self.header = header
        self.path = path
        self._fd = fd
        self._hashes = hashes
        self._places = {block: (start, size) for block, start, size in iter_blocks(header)}
        self._recent: dict[str, _Block] = {}
        self._runs: dict[int, list[tuple[int, int, int]]] = {}
        begin = 0
        for run in header.runs:
            end = run.first_row + run.row_count
            self._runs.setdefault(run.lane, []).append((run.first_row, end, begin))
            begin += run.row_count

    def holds(self, lane: int, first: int, count: int, file_row: int) -> bool:
        """Whether one run of the file has rows [first, first + count) of `lane` at `file_row`."""
        return any(
            start <= first and first + count <= end and begin + first - start == file_row
            for start, end, begin in self._runs.get(lane, ())
        )

    def copy_rows(self, first: int, count: int, targets: Sequence[memoryview]) -> list[BadBlock]:
        """Copy rows [first, first + count) of the file, a target for each field, and verify them.

        Returns the bad blocks among those that the rows lie in; their rows' targets are zero then.
        Raises OSError for what says nothing about the file.
        """
        bad = []
        for field, target in zip(self.header.fields, targets, strict=True):
            row, end = first, first + count
            while row < end:
                number = row >> field.block_shift
                upto = min(end, (number + 1) << field.block_shift)
                at, size = (row - first) * field.row_bytes, (upto - row) * field.row_bytes
                if size == self._places[field.first_block + number][1]:
                    # All of a block is wanted: read in its place.
                    block = self._read_twice(field, number, target[at : at + size])
                else:
                    block = self._read(field, number)
                    begin = (row - (number << field.block_shift)) * field.row_bytes
                    target[at : at + size] = block.data[begin : begin + size]
                if block.error is not None:
                    target[at : at + size] = bytes(size)
                    bad.append(BadBlock(block.error, range(row, upto)))
                row = upto
        return bad

    def _read(self, field: FieldRegion, number: int) -> _Block:
        """Return a block of a field; rows come in order, so that the last one is kept."""
        recent = self._recent.get(field.name)
        if recent is None or recent.number != number:
            data = memoryview(bytearray(self._places[field.first_block + number][1]))
            recent = self._recent[field.name] = self._read_twice(field, number, data)
        return recent

    def _read_twice(self, field: FieldRegion, number: int, data: memoryview) -> _Block:
        """Read a block of a field into `data`, which is as large as it."""
        block = field.first_block + number
        offset, _ = self._places[block]
        error: Exception | None = None
        for _ in range(2):
            try:
                read_into(self._fd, data, offset, self.path)
            except OSError as fault:
                if not is_unreadable(fault.errno):
                    raise
                error = unreadable_error(fault.errno, offset, self.path)
            except TruncatedFileError as fault:
                error = fault
            else:
                got, expected = xxh3_64(data), self._hashes[block]
                if got == expected:
                    return _Block(number, data, None)
                error = _damage(self.path, offset, expected, got)
            drop_cache(self._fd)
        return _Block(number, data, error)


def holds_segment(header: SegmentHeader, plan: RingPlan, lane: int, segment: int) -> bool:
    """Whether a file with this header is the image of a whole segment of a ring."""
    rows, run = plan.segment_rows, header.runs[0]  # parse_header refuses a file without one
    return (
        header.kind == KIND_SEGMENT
        and (header.row_capacity, header.row_count) == (rows, rows)
        and (run.lane, run.first_row) == (lane, segment * rows)
    )


def _damage(path: str, offset: int, expected: int, got: int) -> DamageError:
    return DamageError(
        f"{path}: the block at byte {offset} does not have the hash that its table records",
        path=path,
        offset=offset,
        expected=f"{expected:016x}",
        got=f"{got:016x}",
    )


class SegmentFiles:
    """All of them; a context manager that lets go of those that nobody keeps."""

    def __init__(self, files: Mapping[str, SegmentFile], plan: RingPlan) -> None:
        self.files = files
        self._plan = plan
        self._open: dict[str, OpenFile] = {}
        self._asked: dict[str, tuple[int, int]] = {}
        self._mapped: dict[str, int] = {}
        self._fds: list[int] = []
        self._headers = FullHeaders(plan.layout)

    def __enter__(self) -> SegmentFiles:
        return self

    def __exit__(self, *exception: object) -> None:
        while self._asked:
            door.active.close(self._asked.popitem()[1][0])
        while self._mapped:
            door.active.close(self._mapped.popitem()[1])
        while self._fds:
            door.active.close(self._fds.pop())

    def ask(self, name: str) -> None:
        """Have a file whose rows are to be copied read meanwhile. What is wrong with it is said by
        `get`."""
        with contextlib.suppress(OSError, DamageError):
            if name not in self._open and name not in self._asked:
                self._asked[name] = fd, size = _open_file(self.files[name].path)
                ask_ahead(fd, 0, min(size, _AHEAD_MAX_BYTES))

    def get(self, name: str) -> OpenFile:
        """Return a file whose rows are to be copied, its header and block table proven."""
        if name not in self._open:
            file = self.files[name]
            is_asked = name in self._asked
            fd, size = self._asked.pop(name) if is_asked else _open_file(file.path)
            self._fds.append(fd)
            self._open[name] = self._check(fd, size, file)
        return self._open[name]

    def map(self, name: str) -> MemoryMapping:
        """Map a file, which is the caller's then. Nothing of it is proven before `prove`, for which
        it stays open, and for which header and block table are read meanwhile. One of a wrong size
        is mapped no further than shows that."""
        layout = self._plan.layout
        fd, size = _open_file(self.files[name].path)
        former, self._mapped[name] = self._mapped.get(name), fd
        if former is not None:
            door.active.close(former)
        if size == layout.file_bytes:
            ask_ahead(fd, 0, layout.header_bytes)
            ask_ahead(fd, layout.block_table_offset, size - layout.block_table_offset)
        return MemoryMapping.file(fd, min(size, layout.file_bytes + PAGE_BYTES))

    def prove(self, name: str) -> SegmentHeader:
        """Return the header of a mapped file; it and the block table are proven."""
        file, fd = self.files[name], self._mapped[name]
        frame = read_full_frame(fd, self._headers, file.checksum)
        header = frame[0] if frame else self._check(fd, os.fstat(fd).st_size, file).header
        door.active.close(self._mapped.pop(name))
        return header

    def _check(self, fd: int, size: int, file: SegmentFile) -> OpenFile:
        try:
            return self._check_once(fd, size, file)
        except DamageError:
            drop_cache(fd)
            return self._check_once(fd, size, file)

    def _check_once(self, fd: int, size: int, file: SegmentFile) -> OpenFile:
        image = memoryview(read_frame(fd, size, file.path))
        header = parse_header(image, file.path)
        if header.file_bytes != size:
            raise TruncatedFileError(
                f"{file.path}: the header says {header.file_bytes} bytes, the file has {size}",
                path=file.path,
                offset=size,
                expected=header.file_bytes,
                got=size,
            )
        checksum = verify_checksum(image, header, file.path)
        if checksum != file.checksum:
            raise DamageError(
                f"{file.path}: this is not the file that the manifest lists",
                path=file.path,
                offset=0,
                expected=f"{file.checksum:016x}",
                got=f"{checksum:016x}",
            )
        planned = [(f.name, f.dtype, f.shape) for f in self._plan.layout.fields]
        found = [(f.name, f.dtype, f.shape) for f in header.fields]
        if planned != found:
            raise DamageError(
                f"{file.path}: its fields are not the schema's",
                path=file.path,
                offset=0,
                expected=planned,
                got=found,
            )
        return OpenFile(fd, header, block_hashes(image, header), file.path)


def _open_file(path: str) -> tuple[int, int]:
    """Open a regular file that is not empty; return (descriptor, size)."""
    fd, size_bytes = open_regular(path)
    if size_bytes == 0:
        door.active.close(fd)
        raise TruncatedFileError(f"{path}: empty", path=path, offset=0)
    return fd, size_bytes
