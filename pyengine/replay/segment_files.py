"""A snapshot's segment files: mapped once each, and proven before a value of them is used.

First the header and block table, by the checksum that the manifest records; then, for rows that are
copied, the blocks that they lie in, each once however many lanes share it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyengine._native.hashing import verify_image, xxh3_64
from pyengine._native.mapping import Mapping as MemoryMapping
from pyengine.config import PAGE_BYTES
from pyengine.errors import DamageError, TruncatedFileError
from pyengine.format.segment import (
    SegmentHeader,
    block_hashes,
    iter_blocks,
    parse_header,
    verify_checksum,
)
from pyengine.replay.plan import RingPlan

if TYPE_CHECKING:
    from pyengine._native.control import FileRecordTuple

_HEADER_BYTES_FIELD = slice(12, 16)
"""Where a header says how long it is (FORMAT.md): its pages are read before it is parsed."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A file of a snapshot: where it lies, its recorded checksum, and its pool identity if it has
    one (a full segment's new links are made from that)."""

    path: str
    checksum: int
    record: FileRecordTuple | None


class OpenFile:
    """One mapped file whose header and block table are proven. Made by SegmentFiles."""

    def __init__(self, mapping: MemoryMapping, header: SegmentHeader, file: SegmentFile) -> None:
        self.mapping = mapping
        self.header = header
        self.path = file.path
        self.record = file.record
        self._blocks = {block: (start, size) for block, start, size in iter_blocks(header)}
        self._verified: set[int] = set()
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

    def verify_rows(self, first: int, count: int) -> None:
        """Verify the blocks that rows [first, first + count) of the file lie in; DamageError."""
        for field in self.header.fields:
            begin, last = first >> field.block_shift, (first + count - 1) >> field.block_shift
            for block in range(field.first_block + begin, field.first_block + last + 1):
                if block not in self._verified:
                    self._verify(block)
                    self._verified.add(block)

    def verify_whole(self) -> None:
        """Verify every block; DamageError names the first bad one."""
        # The mapping is for random access: without this, each page is a trip to the disk of its
        # own.
        self.mapping.advise_willneed(0, self.mapping.size)
        self.mapping.populate(0, self.mapping.size)
        with memoryview(self.mapping) as view:
            bad = verify_image(view)
        if bad >= 0:
            self._verify(bad)

    def _verify(self, block: int) -> None:
        offset, length = self._blocks[block]
        page = offset - offset % PAGE_BYTES
        self.mapping.populate(page, offset + length - page)
        with memoryview(self.mapping) as view:
            expected = block_hashes(view, self.header)[block]
            got = xxh3_64(view[offset : offset + length])
        if got != expected:
            raise DamageError(
                f"{self.path}: the block at byte {offset} does not have the hash that its table "
                "records",
                path=self.path,
                offset=offset,
                expected=f"{expected:016x}",
                got=f"{got:016x}",
            )


class SegmentFiles:
    """All of them; a context manager that unmaps those that nobody keeps."""

    def __init__(self, files: Mapping[str, SegmentFile], plan: RingPlan) -> None:
        self.files = files
        self._plan = plan
        self._mapped: dict[str, tuple[MemoryMapping, int]] = {}
        self._open: dict[str, OpenFile] = {}
        self._kept: set[str] = set()

    def __enter__(self) -> SegmentFiles:
        return self

    def __exit__(self, *exception: object) -> None:
        for name, (mapping, _) in self._mapped.items():
            if name not in self._kept:
                mapping.close()

    def keep(self, name: str) -> None:
        """Leave a mapping to the storage."""
        self._kept.add(name)

    def read_ahead(self, names: Iterable[str]) -> None:
        """Ask for what the checks will read of these files, so that the reads overlap.

        A mapping for random access reads page by page, each page a trip to the disk.
        """
        layout = self._plan.layout
        for name in names:
            mapping, size = self._map(name)
            if self.files[name].record is None or size != layout.file_bytes:
                mapping.advise_willneed(0, size)
                continue
            mapping.advise_willneed(0, layout.header_bytes)
            table = layout.block_table_offset
            mapping.advise_willneed(table, size - table)

    def get(self, name: str) -> OpenFile:
        """Return a file, its header and block table proven."""
        if name not in self._open:
            mapping, size = self._map(name)
            file = self.files[name]
            self._open[name] = OpenFile(mapping, self._check(mapping, size, file), file)
        return self._open[name]

    def _map(self, name: str) -> tuple[MemoryMapping, int]:
        if name not in self._mapped:
            path = self.files[name].path
            # O_NONBLOCK: opening what is no file, a FIFO say, must not wait for ever.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                status = os.fstat(fd)
                size = status.st_size
                if not stat.S_ISREG(status.st_mode):
                    raise DamageError(f"{path}: not a regular file", path=path, offset=0)
                if size == 0:
                    raise TruncatedFileError(f"{path}: empty", path=path, offset=0)
                self._mapped[name] = MemoryMapping.file(fd, size), size
            finally:
                os.close(fd)
        return self._mapped[name]

    def _check(self, mapping: MemoryMapping, size: int, file: SegmentFile) -> SegmentHeader:
        with memoryview(mapping) as view:
            mapping.populate(0, min(size, PAGE_BYTES))
            header_bytes = int.from_bytes(view[_HEADER_BYTES_FIELD], "little")
            mapping.populate(0, min(size, header_bytes))
            header = parse_header(view, file.path)
            if header.file_bytes != size:
                raise TruncatedFileError(
                    f"{file.path}: the header says {header.file_bytes} bytes, the file has {size}",
                    path=file.path,
                    offset=size,
                    expected=header.file_bytes,
                    got=size,
                )
            table = header.block_table_offset
            mapping.populate(table, size - table)
            checksum = verify_checksum(view, header, file.path)
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
        return header
