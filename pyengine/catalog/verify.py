"""Verifying a snapshot against its manifest, with nothing but `struct` and xxhash.

Every listed file: there, regular, of its size, of its checksum. A segment's checksum covers its
header and block table, and each of its blocks is hashed against that table, but for blocks whose
rows the ring has dropped. The buffer headers' extents must lie in rows that the segment files
really hold. A mismatch is read twice, past the
page cache where the kernel lets go of it, before it is called damage.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import xxhash

from pyengine.catalog import commit, scan
from pyengine.catalog.info import Problem, SnapshotInfo
from pyengine.catalog.rings import read_buffer_header
from pyengine.errors import DamageError, PyengineError
from pyengine.format import names, segment
from pyengine.format.buffer_header import Extent
from pyengine.format.frame import read_frame, read_range
from pyengine.format.manifest import FileRecord
from pyengine.fs import door
from pyengine.fs.beneath import check_size, drop_cache, open_beneath

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


def verify_snapshot(
    path: str, *, eager: bool = True, progress: Progress | None = None
) -> list[Problem]:
    """Return everything that is wrong with the snapshot at `path`; empty: it is whole.

    `eager=False` reads no rows: of segment files only header and block table, the rest in full.
    Never raises for what is wrong with the snapshot. Locks it against pruning meanwhile.
    """
    with contextlib.ExitStack() as stack:
        try:
            lock = commit.hold_snapshot(path)
            if lock is not None:
                stack.enter_context(lock)
            info = SnapshotInfo.of(path, scan.read_manifest(path))
        except (PyengineError, OSError) as error:
            return [Problem.of(error, os.path.join(path, names.MANIFEST))]
        return _Verifier(info, eager, progress).run()


def check_file(info: SnapshotInfo, record: FileRecord) -> None:
    """Verify one file of a snapshot, every byte of it, and return where it is whole.

    Raises DamageError or TruncatedFileError for a mismatch that was read twice, the second time
    past the page cache; FormatVersionError; OSError as it is (FileNotFoundError: it is missing).
    """
    verifier = _Verifier(info, True, None)
    verifier.note_used()
    verifier.check(record)


def verify_segment(directory: str, name: str) -> tuple[segment.SegmentHeader, int]:
    """Verify a segment file or part that no manifest lists, by what it says of itself.

    Returns its header, and the checksum of header and block table that a manifest would record.
    Reads every byte, twice before it is called damaged. Raises DamageError, FormatVersionError,
    OSError.
    """
    return _read_twice(directory, name, with_rows=True)


def read_segment_header(directory: str, name: str) -> segment.SegmentHeader:
    """Return the header of a segment file or part, which and the block table are proven by what the
    file says of itself; no row is read. Raises as `verify_segment` does."""
    return _read_twice(directory, name, with_rows=False)[0]


def _read_twice(directory: str, name: str, *, with_rows: bool) -> tuple[segment.SegmentHeader, int]:
    path = os.path.join(directory, name)
    fd = open_beneath(directory, name)
    try:
        try:
            return _verify_open_segment(fd, path, with_rows=with_rows)
        except DamageError:
            drop_cache(fd)
            return _verify_open_segment(fd, path, with_rows=with_rows)
    finally:
        door.active.close(fd)


def _verify_open_segment(
    fd: int, path: str, *, with_rows: bool
) -> tuple[segment.SegmentHeader, int]:
    size_bytes = os.fstat(fd).st_size
    image = memoryview(read_frame(fd, size_bytes, path))
    header = segment.parse_header(image, path)
    check_size(path, size_bytes, header.file_bytes)
    checksum = segment.verify_checksum(image, header, path)
    if with_rows:
        check_blocks(fd, header, segment.block_hashes(image, header), path)
    return header, checksum


class _Verifier:
    """One pass over the files of one snapshot."""

    def __init__(self, info: SnapshotInfo, eager: bool, progress: Progress | None) -> None:
        self._info = info
        self._eager = eager
        self._progress = progress
        self._done_bytes = 0
        self._shown_bytes = 0
        self._segments: dict[str, segment.SegmentHeader] = {}
        self._used: dict[str, list[range]] = {}
        """Rows in use of the files of rings that have dropped rows; of others all count."""

    def run(self) -> list[Problem]:
        problems = []
        self.note_used()
        for record in self._info.files:
            begun_bytes = self._done_bytes
            try:
                self.check(record)
            except (PyengineError, OSError) as error:
                problems.append(Problem.of(error, os.path.join(self._info.path, record.path)))
            self._done_bytes = begun_bytes
            self._report(record.size_bytes)
        for record in self._info.files:
            if os.path.basename(record.path) == names.BUFFER_HEADER:
                try:
                    self._check_extents(record)
                except (PyengineError, OSError) as error:
                    problems.append(Problem.of(error, os.path.join(self._info.path, record.path)))
        return problems

    def _report(self, more_bytes: int) -> None:
        self._done_bytes += more_bytes
        self._shown_bytes = max(self._shown_bytes, self._done_bytes)  # a second look counts once
        if self._progress is not None:
            self._progress(self._shown_bytes, self._info.size_bytes)

    def check(self, record: FileRecord) -> None:
        """Verify one file: twice before it is called damaged."""
        begun_bytes = self._done_bytes
        fd = open_beneath(self._info.path, record.path)
        try:
            try:
                self._check_open(fd, record)
            except DamageError:
                self._done_bytes = begun_bytes
                drop_cache(fd)
                self._check_open(fd, record)
        finally:
            door.active.close(fd)

    def _check_open(self, fd: int, record: FileRecord) -> None:
        path = os.path.join(self._info.path, record.path)
        check_size(path, os.fstat(fd).st_size, record.size_bytes)
        if record.covers == "all":
            self._check_all(fd, record, path)
        else:
            header, hashes = prove_frame(fd, record, path)
            self._segments[record.path] = header
            if self._eager:
                check_blocks(fd, header, hashes, path, self._report, self._used.get(record.path))

    def _check_all(self, fd: int, record: FileRecord, path: str) -> None:
        digest = xxhash.xxh3_64()
        for view in read_range(fd, 0, record.size_bytes, path):
            digest.update(view)
            self._report(len(view))
        _expect_sum(path, record, digest.intdigest())

    def note_used(self) -> None:
        """Read which rows of which files the rings have, where they have dropped some."""
        for record in self._info.files:
            if os.path.basename(record.path) == names.BUFFER_HEADER:
                with contextlib.suppress(PyengineError, OSError):  # told where it is checked
                    self._note_used(record)

    def _note_used(self, record: FileRecord) -> None:
        header = read_buffer_header(self._info, record)
        for extent in header.extents if header.dropped else ():
            file = f"{os.path.dirname(record.path)}/{extent.file}"
            rows = range(extent.file_row, extent.file_row + extent.row_count)
            self._used.setdefault(file, []).append(rows)

    def _check_extents(self, record: FileRecord) -> None:
        path = os.path.join(self._info.path, record.path)
        header = read_buffer_header(self._info, record)
        directory = os.path.dirname(record.path)
        listed = {file.path for file in self._info.files}
        for extent in header.extents:
            file = f"{directory}/{extent.file}"
            if file not in listed:
                raise DamageError(f"{path}: {extent.file} is not in the manifest", path=path)
            found = self._segments.get(file)
            if found is not None and not holds_extent(found, extent):
                raise DamageError(
                    f"{path}: {extent.file} does not hold rows {extent.first_row} to "
                    f"{extent.first_row + extent.row_count} of lane {extent.lane}",
                    path=path,
                )
        if header.mutable_file and f"{directory}/{header.mutable_file}" not in listed:
            raise DamageError(f"{path}: {header.mutable_file} is not in the manifest", path=path)


def prove_frame(
    fd: int, record: FileRecord, path: str
) -> tuple[segment.SegmentHeader, tuple[int, ...]]:
    """Return header and block table of an open segment file once they are what the manifest says.

    Reads no rows. DamageError, FormatVersionError, OSError.
    """
    image = memoryview(read_frame(fd, record.size_bytes, path))
    segment.check_version(image, path, int(record.xxh3_64, 16))
    header = segment.parse_header(image, path)
    _expect_sum(path, record, segment.checksum_of(image, header))
    segment.verify_checksum(image, header, path)
    return header, segment.block_hashes(image, header)


def find_bad_blocks(fd: int, header: segment.SegmentHeader, path: str) -> list[int]:
    """Return the blocks of an open segment file, its header proven, that are not what its block
    table says. DamageError, OSError: the table cannot be read."""
    hashes = segment.block_hashes(memoryview(read_frame(fd, header.file_bytes, path)), header)
    bad = []
    for block, offset, length in segment.iter_blocks(header):
        digest = xxhash.xxh3_64()
        for view in read_range(fd, offset, length, path):
            digest.update(view)
        if digest.intdigest() != hashes[block]:
            bad.append(block)
    return bad


def check_blocks(
    fd: int,
    header: segment.SegmentHeader,
    hashes: tuple[int, ...],
    path: str,
    report: Callable[[int], None] = lambda _: None,
    used: list[range] | None = None,
) -> None:
    """Read every block of an open segment file; DamageError names the first bad one.

    `used`: only blocks that these rows of the file lie in.
    """
    for block, offset, length in segment.iter_blocks(header):
        if used is not None and not _overlaps(segment.block_rows(header, block), used):
            report(length)
            continue
        digest = xxhash.xxh3_64()
        for view in read_range(fd, offset, length, path):
            digest.update(view)
        if digest.intdigest() != hashes[block]:
            raise DamageError(
                f"{path}: block {block}, bytes {offset} to {offset + length}, has the checksum "
                f"{digest.intdigest():016x}, its table says {hashes[block]:016x}",
                path=path,
                offset=offset,
                expected=f"{hashes[block]:016x}",
                got=f"{digest.intdigest():016x}",
            )
        report(length)


def holds_extent(header: segment.SegmentHeader, extent: Extent) -> bool:
    """Return whether a segment file holds an extent's rows where the extent says they are."""
    begin = 0
    for run in header.runs:
        if begin <= extent.file_row < begin + run.row_count:
            skipped = extent.file_row - begin
            return (
                run.lane == extent.lane
                and run.first_row + skipped == extent.first_row
                and skipped + extent.row_count <= run.row_count
            )
        begin += run.row_count
    return False


def _overlaps(rows: range, used: list[range]) -> bool:
    return any(rows.start < other.stop and other.start < rows.stop for other in used)


def _expect_sum(path: str, record: FileRecord, got: int) -> None:
    if f"{got:016x}" != record.xxh3_64:
        what = "header and block table have" if record.covers == "segment" else "it has"
        raise DamageError(
            f"{path}: {what} the checksum {got:016x}, the manifest says {record.xxh3_64}",
            path=path,
            offset=0,
            expected=record.xxh3_64,
            got=f"{got:016x}",
        )
