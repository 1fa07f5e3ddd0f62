"""The frame of a segment file: header and block table, read without the rows.

A file is read, never mapped, so that a bad sector or a file cut short is an error, not a signal.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import xxhash

from pyengine.errors import TruncatedFileError
from pyengine.format.segment import (
    HEADER,
    HEADER_RECORD_BYTES,
    KIND_SEGMENT,
    LINE_FIELD,
    MAX_HEADER_BYTES,
    RUN,
    TRAILER_BYTES,
    Run,
    SegmentHeader,
    SegmentLayout,
    find_header,
    header_image,
)
from pyengine.fs import door

_CHUNK_BYTES = 8 * 1024 * 1024
_MAP_NORESERVE = 0x4000


def read_frame(fd: int, file_bytes: int, path: str) -> mmap.mmap:
    """Return an image of a segment file in which only header and block table were read.

    The rows' pages are never touched and take no memory. The image is no longer than the header
    says, and where nothing fits together it ends with the header: a sparse file may be of any size.
    The table is read whatever the version. Nothing in it is proven. Raises TruncatedFileError,
    OSError, which names the file where its image exceeds the process's address space.
    """
    head = _read_head(fd, file_bytes, path)
    is_whole = len(head) >= HEADER_RECORD_BYTES
    header = find_header(memoryview(head), path) if is_whole else None
    end = len(head) if header is None else min(header.file_bytes, file_bytes)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        image = mmap.mmap(-1, max(end, 1), flags=flags)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from error
    image[: len(head)] = bytes(head)
    if header is not None:
        _fill(fd, image, min(header.block_table_offset, end), end, path)
    return image


def _read_head(fd: int, file_bytes: int, path: str) -> bytearray:
    """Return what the file has of a header: its record, and the tables that this tells of."""
    head = bytearray(min(file_bytes, HEADER_RECORD_BYTES))
    read_into(fd, memoryview(head), 0, path)
    if len(head) == HEADER_RECORD_BYTES:
        header_bytes = HEADER.unpack_from(head, 0)[2]
        if HEADER_RECORD_BYTES < header_bytes <= MAX_HEADER_BYTES:
            tables = bytearray(min(header_bytes, file_bytes) - len(head))
            read_into(fd, memoryview(tables), len(head), path)
            head += tables
    return head


class FullHeaders:
    """Headers of the full segments of one layout, recognised by their bytes; any thread.

    They are equal but for the line and the run. To take one apart costs more than to read it, and a
    ring has hundreds of files.
    """

    def __init__(self, layout: SegmentLayout) -> None:
        self.layout = layout
        run = Run(0, 0, layout.row_capacity)
        self._image = header_image(layout, line=0, kind=KIND_SEGMENT, runs=[run])

    def find(self, buffer: bytearray | memoryview) -> SegmentHeader | None:
        """Return the header at the start of `buffer`, as `parse_header` would; None: it is none of
        these, or none at all. `buffer` holds at least as many bytes as a header has."""
        layout, image = self.layout, bytearray(self._image)
        at = layout.run_table_offset
        image[LINE_FIELD] = buffer[LINE_FIELD]
        image[at : at + RUN.size] = buffer[at : at + RUN.size]
        lane, reserved, first_row, row_count = RUN.unpack_from(image, at)
        if reserved or row_count != layout.row_capacity or buffer[: layout.header_bytes] != image:
            return None
        return SegmentHeader(
            layout.fields,
            layout.row_capacity,
            layout.run_capacity,
            layout.header_bytes,
            layout.block_table_offset,
            layout.block_count,
            layout.file_bytes,
            int.from_bytes(image[LINE_FIELD], "little"),
            KIND_SEGMENT,
            row_count,
            (Run(lane, first_row, row_count),),
        )


def read_full_frame(
    fd: int, headers: FullHeaders, checksum: int
) -> tuple[SegmentHeader, memoryview] | None:
    """Return header and block table (uint64) of a full segment of a known layout, proven.

    None: it has not this checksum, or is not such a file, or could not be read; `read_frame` and
    the checks of the format say what it is. The quick way for hundreds of files.
    """
    layout = headers.layout
    begin, end = layout.header_bytes, layout.file_bytes - TRAILER_BYTES
    if os.fstat(fd).st_size != layout.file_bytes:
        return None
    data = memoryview(bytearray(begin + layout.file_bytes - layout.block_table_offset))
    try:
        read_into(fd, data[:begin], 0, "")
        read_into(fd, data[begin:], layout.block_table_offset, "")
    except (OSError, TruncatedFileError):
        return None
    proven = data[: begin + end - layout.block_table_offset]
    stored = int.from_bytes(data[len(proven) :], "little")
    if not checksum == stored == xxhash.xxh3_64_intdigest(proven):
        return None
    header = headers.find(data)
    if header is None:
        return None
    return header, data[begin : begin + 8 * layout.block_count].cast("Q")


def read_range(fd: int, offset: int, length: int, path: str) -> Iterator[memoryview]:
    """Yield `length` bytes from `offset` in pieces that are valid until the next one.

    TruncatedFileError where the file ends before.
    """
    buffer = memoryview(bytearray(min(length, _CHUNK_BYTES)))
    end = offset + length
    while offset < end:
        count = door.active.pread_into(fd, [buffer[: end - offset]], offset)
        if count == 0:
            raise TruncatedFileError(f"{path} ends at {offset}", path=path, offset=offset)
        yield buffer[:count]
        offset += count


def read_into(fd: int, view: memoryview, offset: int, path: str) -> None:
    """Fill `view` from `offset`; TruncatedFileError where the file ends before."""
    at = 0
    while at < len(view):
        count = door.active.pread_into(fd, [view[at : at + _CHUNK_BYTES]], offset + at)
        if count == 0:
            end = offset + at
            raise TruncatedFileError(f"{path} ends at {end}", path=path, offset=end)
        at += count


def _fill(fd: int, image: mmap.mmap, begin: int, end: int, path: str) -> None:
    for view in read_range(fd, begin, end - begin, path):
        image[begin : begin + len(view)] = view
        begin += len(view)
