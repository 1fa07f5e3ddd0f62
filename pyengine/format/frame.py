"""The frame of a segment file: header and block table, read without the rows.

A file is read, never mapped, so that a bad sector or a file cut short is an error, not a signal.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

from pyengine.errors import TruncatedFileError
from pyengine.format.segment import (
    HEADER,
    HEADER_RECORD_BYTES,
    MAX_HEADER_BYTES,
    find_header,
)
from pyengine.fs import door

_CHUNK_BYTES = 8 * 1024 * 1024
_MAP_NORESERVE = 0x4000


def read_frame(fd: int, file_bytes: int, path: str) -> mmap.mmap:
    """Return an image of a segment file in which only header and block table were read.

    The rows' pages are never touched and take no memory, so that a file of any size will do. The
    table is read where the header fits together, whatever its version. Nothing in it is proven.
    Raises TruncatedFileError, OSError.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    image = mmap.mmap(-1, max(file_bytes, 1), flags=flags)
    _fill(fd, image, 0, min(file_bytes, HEADER_RECORD_BYTES), path)
    if file_bytes >= HEADER_RECORD_BYTES:
        header_bytes = HEADER.unpack_from(image, 0)[2]
        if header_bytes <= MAX_HEADER_BYTES:
            _fill(fd, image, 0, min(header_bytes, file_bytes), path)
        with memoryview(image) as view:
            header = find_header(view, path)
        if header is not None:
            # Where a header says so, everything would be the table: a sparse file has room for it.
            end = min(header.file_bytes, file_bytes)
            _fill(fd, image, min(header.block_table_offset, end), end, path)
    return image


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
