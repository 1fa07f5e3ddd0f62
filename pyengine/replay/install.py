"""Put a snapshot's rows into fresh storage: map full segments, copy the rows of open ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from pyengine._native.hashing import verify_image, xxh3_64
from pyengine._native.mapping import Mapping as MemoryMapping
from pyengine.config import PAGE_BYTES
from pyengine.errors import DamageError, StateMismatchError, TruncatedFileError
from pyengine.format.buffer_header import BufferHeader, Extent
from pyengine.format.segment import (
    KIND_SEGMENT,
    SegmentHeader,
    block_hashes,
    iter_blocks,
    parse_header,
    verify_checksum,
)
from pyengine.replay.plan import RingPlan
from pyengine.replay.storage import Storage

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


def check_header(plan: RingPlan, header: BufferHeader, label: str) -> None:
    """Raise StateMismatchError unless schema, capacity and lanes are the ring's."""
    sides: list[tuple[str, Any, Any]] = [
        ("capacity", plan.capacity, header.capacity),
        ("num_envs", plan.num_lanes, header.num_lanes),
        ("segment rows", plan.segment_rows, header.segment_rows),
        ("schema", plan.schema.to_record(), dict(header.schema)),
    ]
    for what, expected, got in sides:
        if expected != got:
            raise StateMismatchError(
                f"{label}: the ring has {what} {expected}, the snapshot {got}; make the ring as it "
                "was saved, or restore with replay='skip'",
                component=label,
                expected=expected,
                got=got,
            )


def install(
    storage: Storage,
    header: BufferHeader,
    files: Mapping[str, SegmentFile],
    mutable: Mapping[str, NDArray[Any]],
    *,
    eager: bool,
    replay_last: int | None,
    keep_breaks: bool,
) -> int:
    """Fill `storage`; see ReplayBuffer.install. Returns the number of rows."""
    plan, core = storage.plan, storage.core
    rows = plan.segment_rows
    opened = _Files(files, plan)
    tails = _tails(header, replay_last)
    restored = 0
    with opened:
        opened.read_ahead(
            extent.file
            for extent in header.extents
            if extent.first_row + extent.row_count > tails[extent.lane]
        )
        for extent in header.extents:
            end = extent.first_row + extent.row_count
            total = header.lanes[extent.lane].total_count
            if end <= tails[extent.lane]:
                continue
            for segment in range(extent.first_row // rows, -(-end // rows)):
                if (segment + 1) * rows <= min(end, total):
                    if (segment + 1) * rows > tails[extent.lane]:
                        _map_full(storage, opened, extent, segment, eager=eager)
                else:
                    _copy_open(storage, opened, extent, segment)
        for name, array in storage.mutable_arrays().items():
            array[...] = mutable[name]
        for lane, record in enumerate(header.lanes):
            if tails[lane] == record.total_count and record.total_count % rows:
                # No extent names the segment that the next row goes into.
                core.open_segment(lane, record.total_count // rows)
            core.set_lane(
                lane, tails[lane], record.total_count, record.break_pending or not keep_breaks
            )
            restored += record.total_count - tails[lane]
        sampler = header.sampler
        core.seed_state = (int(sampler["state"], 16), int(sampler["increment"], 16))
        core.lost_updates = int(sampler.get("lost_updates", 0))
    return restored


def _tails(header: BufferHeader, replay_last: int | None) -> list[int]:
    tails = [lane.tail for lane in header.lanes]
    # Rows that were given up lie nowhere: the window begins after the last of them.
    for run in header.dropped:
        tails[run.lane] = max(tails[run.lane], run.first_row + run.row_count)
    if replay_last is None:
        return tails
    per_lane = replay_last // len(tails)
    return [
        max(tail, lane.total_count - per_lane)
        for tail, lane in zip(tails, header.lanes, strict=True)
    ]


class _Files:
    """The snapshot's segment files, mapped once each and checked as far as their checksum."""

    def __init__(self, files: Mapping[str, SegmentFile], plan: RingPlan) -> None:
        self.files = files
        self._plan = plan
        self._mapped: dict[str, tuple[MemoryMapping, int]] = {}
        self._open: dict[str, tuple[MemoryMapping, SegmentHeader]] = {}
        self._kept: set[str] = set()

    def __enter__(self) -> _Files:
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

    def get(self, name: str) -> tuple[MemoryMapping, SegmentHeader]:
        """Return mapping and header of a file whose header and block table are proven."""
        if name not in self._open:
            mapping, size = self._map(name)
            self._open[name] = mapping, self._check(mapping, size, self.files[name])
        return self._open[name]

    def _map(self, name: str) -> tuple[MemoryMapping, int]:
        if name not in self._mapped:
            path = self.files[name].path
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                size = os.fstat(fd).st_size
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


def _map_full(
    storage: Storage, opened: _Files, extent: Extent, segment: int, *, eager: bool
) -> None:
    """Let a full segment live in its file."""
    rows = storage.plan.segment_rows
    mapping, header = opened.get(extent.file)
    file = opened.files[extent.file]
    run = header.runs[0]  # parse_header refuses a file without one
    is_image = (
        header.kind == KIND_SEGMENT
        and (header.row_capacity, header.row_count) == (rows, rows)
        and (run.lane, run.first_row) == (extent.lane, segment * rows)
        and extent.first_row - extent.file_row == run.first_row
        and file.record is not None
    )
    if not is_image:
        raise DamageError(
            f"{file.path}: does not hold segment {segment} of lane {extent.lane}, as the buffer "
            "header says",
            path=file.path,
            offset=0,
            expected=(extent.lane, segment * rows, rows),
            got=(run.lane, run.first_row, run.row_count),
        )
    assert file.record is not None
    if eager:
        _verify_whole(mapping, header, file.path)
        for block in range(header.block_count):
            storage.control.mark_verified(extent.lane, segment, block)
    key = (extent.lane, segment)
    storage.mapped[key] = mapping
    storage.paths[key] = file.path
    opened.keep(extent.file)
    storage.core.map_segment(extent.lane, segment, mapping.address, file.record)


def _copy_open(storage: Storage, opened: _Files, extent: Extent, segment: int) -> None:
    """Copy the rows of a segment that was open at the cut into a slot."""
    rows = storage.plan.segment_rows
    mapping, header = opened.get(extent.file)
    first = max(segment * rows, extent.first_row)
    count = extent.first_row + extent.row_count - first
    file_row = extent.file_row + first - extent.first_row
    path = opened.files[extent.file].path
    if not _holds(header, extent.lane, first, count, file_row):
        raise DamageError(
            f"{path}: rows {first} to {first + count} of lane {extent.lane} are not at its row "
            f"{file_row}, as the buffer header says",
            path=path,
            offset=0,
        )
    _verify_rows(mapping, header, file_row, count, path)
    image = storage.core.open_segment(extent.lane, segment)
    with memoryview(mapping) as source:
        for region, target in zip(header.fields, storage.plan.layout.fields, strict=True):
            offset = region.offset + file_row * region.row_bytes
            size = count * region.row_bytes
            start = image + target.offset + (first - segment * rows) * target.row_bytes
            storage.arena.view(start, size)[:] = source[offset : offset + size]


def _holds(header: SegmentHeader, lane: int, first: int, count: int, file_row: int) -> bool:
    """Whether one run of the file has rows [first, first + count) of `lane` at `file_row`."""
    begin = 0
    for run in header.runs:
        if run.lane == lane and run.first_row <= first:
            inside = first + count <= run.first_row + run.row_count
            if inside and begin + first - run.first_row == file_row:
                return True
        begin += run.row_count
    return False


def _verify_rows(
    mapping: MemoryMapping, header: SegmentHeader, first: int, count: int, path: str
) -> None:
    """Verify the blocks that rows [first, first + count) of a file lie in."""
    with memoryview(mapping) as view:
        table = block_hashes(view, header)
        blocks = {block: (offset, length) for block, offset, length in iter_blocks(header)}
        for field in header.fields:
            for index in range(
                first >> field.block_shift, ((first + count - 1) >> field.block_shift) + 1
            ):
                offset, length = blocks[field.first_block + index]
                page = offset - offset % 4096
                mapping.populate(page, offset + length - page)
                got = xxh3_64(view[offset : offset + length])
                if got != table[field.first_block + index]:
                    raise _bad_block(path, offset, table[field.first_block + index], got)


def _verify_whole(mapping: MemoryMapping, header: SegmentHeader, path: str) -> None:
    # The mapping is for random access: without this, each page is a trip to the disk of its own.
    mapping.advise_willneed(0, mapping.size)
    mapping.populate(0, mapping.size)
    with memoryview(mapping) as view:
        bad = verify_image(view)
        if bad >= 0:
            blocks = {block: (offset, length) for block, offset, length in iter_blocks(header)}
            offset, length = blocks[bad]
            got = xxh3_64(view[offset : offset + length])
            raise _bad_block(path, offset, block_hashes(view, header)[bad], got)


def _bad_block(path: str, offset: int, expected: int, got: int) -> DamageError:
    return DamageError(
        f"{path}: the block at byte {offset} does not have the hash that its table records",
        path=path,
        offset=offset,
        expected=f"{expected:016x}",
        got=f"{got:016x}",
    )
