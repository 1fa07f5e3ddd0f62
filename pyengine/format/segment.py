"""Segment files and parts: layout, header, checks. FORMAT.md is the page; this is its Python.

Nothing here needs native code: a segment is planned, written and decoded with `struct` alone. The
C side has the same records in csrc/core/format.h, and a test holds all three together. A reader
trusts nothing: lengths before use, then the checksum, then the meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import xxhash

from pyengine.config import BLOCK_BYTES, PAGE_BYTES, SEGMENT_MAX_BYTES, SEGMENT_MIN_BYTES
from pyengine.errors import DamageError, FormatVersionError, TruncatedFileError
from pyengine.format.dtypes import BY_CODE
from pyengine.format.field import MAX_DIMENSIONS, MAX_ELEMENTS
from pyengine.format.schema import (
    MAX_FIELDS,
    MAX_NAME_BYTES,
    Field,
)

MAGIC = b"PESEGMNT"
VERSION = 1
KIND_SEGMENT = 1
KIND_PART = 2

HEADER = struct.Struct("<8sIIQQQQIIIIQQ")
HEADER_RECORD_BYTES = 128
FIELD = struct.Struct("<64sII8QQQQQQII")
FIELD_RECORD_BYTES = 192
RUN = struct.Struct("<IIQQ")
TRAILER_BYTES = 8
_VERSION_FIELD = slice(8, 12)
LINE_FIELD = slice(16, 24)
"""Of a header: the line that the file was written under."""
_ROW_COUNT_OFFSET = 40
MAX_HEADER_BYTES = 64 * 1024 * 1024
_MAX_RUNS = 1 << 20

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows of one lane: `row_count` rows from `first_row`."""

    lane: int
    first_row: int
    row_count: int


@dataclass(frozen=True, slots=True)
class FieldRegion:
    """Where one append field lies in an image; a block is 2**block_shift rows."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    row_bytes: int
    offset: int
    region_bytes: int
    first_block: int
    block_count: int
    block_shift: int


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """The layout of an image that holds up to `row_capacity` rows in up to `run_capacity` runs."""

    fields: tuple[FieldRegion, ...]
    row_capacity: int
    run_capacity: int
    header_bytes: int
    block_table_offset: int
    block_count: int
    file_bytes: int

    @property
    def run_table_offset(self) -> int:
        """Byte offset of the first run record."""
        return HEADER_RECORD_BYTES + FIELD_RECORD_BYTES * len(self.fields)


@dataclass(frozen=True, slots=True)
class SegmentHeader(SegmentLayout):
    """A header read from a file: its layout, and what the file holds."""

    line: int
    kind: int
    row_count: int
    runs: tuple[Run, ...]


def round_to_page(size: int) -> int:
    """Return `size` rounded up to a whole page."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def segment_rows(row_bytes: int, rows_per_lane: int) -> int:
    """Return R, the rows of a segment: a power of two (see FORMAT.md, "Rows of a segment")."""
    rows = 1
    while 2 * rows <= rows_per_lane // 64 and 2 * rows * row_bytes <= SEGMENT_MAX_BYTES:
        rows *= 2
    if rows * row_bytes < SEGMENT_MIN_BYTES:
        limit = max(1, rows_per_lane // 4)
        while rows * row_bytes < SEGMENT_MIN_BYTES and 2 * rows <= limit:
            rows *= 2
    return rows


def plan_layout(
    fields: Mapping[str, Field], row_capacity: int, *, run_capacity: int = 1
) -> SegmentLayout:
    """Return the layout of an image for append fields `fields` (the reserved start field too)."""
    records = HEADER_RECORD_BYTES + FIELD_RECORD_BYTES * len(fields) + RUN.size * run_capacity
    header_bytes = offset = round_to_page(records)
    regions: list[FieldRegion] = []
    block = 0
    for name, field in fields.items():
        shift = max(0, (BLOCK_BYTES // field.row_bytes).bit_length() - 1)
        region = round_to_page(field.row_bytes * row_capacity)
        count = -(-row_capacity // (1 << shift))
        regions.append(
            FieldRegion(
                name, field.dtype, field.shape, field.row_bytes, offset, region, block, count, shift
            )
        )
        offset += region
        block += count
    file_bytes = offset + round_to_page(8 * block + TRAILER_BYTES)
    return SegmentLayout(
        tuple(regions), row_capacity, run_capacity, header_bytes, offset, block, file_bytes
    )


def header_image(layout: SegmentLayout, *, line: int, kind: int, runs: Sequence[Run]) -> bytes:
    """Return the `header_bytes` of an image; row_count is the sum over `runs`.

    ValueError where no reader would take it: what cannot be read must not be written.
    """
    try:
        image = _pack_header(layout, line, kind, runs)
        parse_header(image, "a new header")
    except (struct.error, DamageError) as error:
        raise ValueError(f"no reader takes this header: {error}") from error
    return image


def _pack_header(layout: SegmentLayout, line: int, kind: int, runs: Sequence[Run]) -> bytes:
    image = bytearray(layout.header_bytes)
    HEADER.pack_into(
        image,
        0,
        MAGIC,
        VERSION,
        layout.header_bytes,
        line,
        layout.file_bytes,
        layout.row_capacity,
        sum(run.row_count for run in runs),
        kind,
        len(layout.fields),
        len(runs),
        layout.run_capacity,
        layout.block_table_offset,
        layout.block_count,
    )
    for index, field in enumerate(layout.fields):
        FIELD.pack_into(
            image,
            HEADER_RECORD_BYTES + index * FIELD_RECORD_BYTES,
            field.name.encode(),
            _code(field.dtype),
            len(field.shape),
            *field.shape,
            *[0] * (MAX_DIMENSIONS - len(field.shape)),
            field.row_bytes,
            field.offset,
            field.region_bytes,
            field.first_block,
            field.block_count,
            field.block_shift,
            0,
        )
    for index, run in enumerate(runs):
        offset = layout.run_table_offset + index * RUN.size
        RUN.pack_into(image, offset, run.lane, 0, run.first_row, run.row_count)
    return bytes(image)


def set_counts(image: memoryview, layout: SegmentLayout, row_count: int) -> None:
    """Write the row count of a segment (one run) into its header."""
    struct.pack_into("<Q", image, _ROW_COUNT_OFFSET, row_count)
    struct.pack_into("<Q", image, layout.run_table_offset + 16, row_count)


def parse_header(buffer: Buffer, path: str) -> SegmentHeader:
    """Return the header at the start of `buffer`, every length checked.

    `buffer` holds at least the header; the file's own size is compared by the caller. The values
    are consistent with one another, not yet proven: see `verify_checksum`. Raises
    FormatVersionError, TruncatedFileError or DamageError, each naming `path` and offset.
    """
    if len(buffer) < HEADER_RECORD_BYTES:
        raise TruncatedFileError(
            f"{path}: {len(buffer)} bytes are too few for a segment header",
            path=path,
            offset=len(buffer),
            expected=HEADER_RECORD_BYTES,
            got=len(buffer),
        )
    values = HEADER.unpack_from(buffer, 0)
    magic, version, header_bytes, line, file_bytes, row_capacity, row_count = values[:7]
    kind, field_count, run_count, run_capacity, table_offset, block_count = values[7:]
    _expect(path, 0, "magic", MAGIC, bytes(magic))
    if version != VERSION:
        raise FormatVersionError(
            f"{path}: segment format {version} is not the {VERSION} that this pyengine reads",
            path=path,
            version=version,
        )
    if (
        kind not in (KIND_SEGMENT, KIND_PART)
        or not 1 <= field_count <= MAX_FIELDS
        or not 1 <= run_count <= run_capacity
        or (kind == KIND_SEGMENT and run_capacity != 1)
        or run_capacity > _MAX_RUNS
        or row_count > row_capacity
        or header_bytes > MAX_HEADER_BYTES
    ):
        raise DamageError(f"{path}: impossible counts in the header", path=path, offset=0)
    if len(buffer) < header_bytes:
        raise TruncatedFileError(
            f"{path}: the header takes {header_bytes} bytes, the file has {len(buffer)}",
            path=path,
            offset=len(buffer),
            expected=header_bytes,
            got=len(buffer),
        )
    fields = _read_fields(buffer, field_count, path) if header_bytes >= PAGE_BYTES else {}
    layout = plan_layout(fields, row_capacity, run_capacity=run_capacity)
    # The page lays an image out in one way only, so that the stored layout must equal the planned.
    stored = (header_bytes, file_bytes, table_offset, block_count)
    planned = (
        layout.header_bytes,
        layout.file_bytes,
        layout.block_table_offset,
        layout.block_count,
    )
    _expect(path, 12, "layout", planned, stored)
    runs = tuple(
        Run(lane, first_row, count)
        for lane, _, first_row, count in (
            RUN.unpack_from(buffer, layout.run_table_offset + index * RUN.size)
            for index in range(run_count)
        )
    )
    _expect(path, _ROW_COUNT_OFFSET, "row count", sum(run.row_count for run in runs), row_count)
    header = SegmentHeader(
        layout.fields,
        row_capacity,
        run_capacity,
        header_bytes,
        table_offset,
        block_count,
        file_bytes,
        line,
        kind,
        row_count,
        runs,
    )
    _expect(path, HEADER_RECORD_BYTES, "field table", _field_table(header), _table(buffer, header))
    return header


def check_version(buffer: bytearray | memoryview, path: str, checksum: int) -> None:
    """Raise DamageError where a version that is not read here is a changed byte.

    It is, where the file has its recorded `checksum` with our version in that place. `buffer` holds
    the whole file, header and block table at least, and is writable; it is left as it was.
    """
    if len(buffer) < HEADER_RECORD_BYTES:
        return
    got = bytes(buffer[_VERSION_FIELD])
    ours = struct.pack("<I", VERSION)
    if got == ours:
        return
    header = find_header(buffer, path)
    buffer[_VERSION_FIELD] = ours
    try:
        is_ours = header is not None and checksum_of(buffer, header) == checksum
    finally:
        buffer[_VERSION_FIELD] = got
    if is_ours:
        _expect(path, _VERSION_FIELD.start, "version", VERSION, int.from_bytes(got, "little"))


def find_header(buffer: bytearray | memoryview, path: str) -> SegmentHeader | None:
    """Return the header as `parse_header` does, read as one of our version; None: it is none.

    `buffer` is writable, and left as it was.
    """
    got = bytes(buffer[_VERSION_FIELD])
    buffer[_VERSION_FIELD] = struct.pack("<I", VERSION)
    try:
        return parse_header(buffer, path)
    except (DamageError, struct.error):
        return None
    finally:
        buffer[_VERSION_FIELD] = got


def checksum_of(buffer: Buffer, header: SegmentLayout) -> int:
    """Return the file's checksum: XXH3-64 of the header and of the block table before the trailer.

    `buffer` holds the whole file.
    """
    view = memoryview(buffer)
    digest = xxhash.xxh3_64(view[: header.header_bytes])
    digest.update(view[header.block_table_offset : header.file_bytes - TRAILER_BYTES])
    return digest.intdigest()


def verify_checksum(buffer: Buffer, header: SegmentHeader, path: str) -> int:
    """Return the file's checksum once it equals the trailer's; else DamageError.

    `buffer` holds the whole file; TruncatedFileError where it is shorter than its header says.
    """
    if len(buffer) < header.file_bytes:
        raise TruncatedFileError(
            f"{path}: the header says {header.file_bytes} bytes, the file has {len(buffer)}",
            path=path,
            offset=len(buffer),
            expected=header.file_bytes,
            got=len(buffer),
        )
    offset = header.file_bytes - TRAILER_BYTES
    (stored,) = struct.unpack_from("<Q", buffer, offset)
    _expect(path, offset, "checksum", stored, checksum_of(buffer, header))
    return int(stored)


def block_hashes(buffer: Buffer, header: SegmentLayout) -> tuple[int, ...]:
    """Return the block table of an image."""
    return struct.unpack_from(f"<{header.block_count}Q", buffer, header.block_table_offset)


def iter_blocks(header: SegmentLayout) -> Iterator[tuple[int, int, int]]:
    """Yield (block, byte offset, byte length); a field's last block ends with its region."""
    for field in header.fields:
        step = field.row_bytes << field.block_shift
        for index in range(field.block_count):
            begin = index * step
            end = field.region_bytes if index == field.block_count - 1 else begin + step
            yield field.first_block + index, field.offset + begin, end - begin


def block_rows(layout: SegmentLayout, block: int) -> range:
    """Return the rows of an image that a block holds values of; the last may be beyond its end."""
    for field in layout.fields:
        index = block - field.first_block
        if 0 <= index < field.block_count:
            return range(index << field.block_shift, (index + 1) << field.block_shift)
    raise ValueError(f"an image of {layout.block_count} blocks has no block {block}")


def _read_fields(buffer: Buffer, count: int, path: str) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for index in range(count):
        offset = HEADER_RECORD_BYTES + index * FIELD_RECORD_BYTES
        if offset + FIELD_RECORD_BYTES > len(buffer):
            raise DamageError(f"{path}: field table leaves the header", path=path, offset=offset)
        raw, code, ndim, *rest = FIELD.unpack_from(buffer, offset)
        shape = tuple(rest[:ndim]) if ndim <= MAX_DIMENSIONS else ()
        name = raw.rstrip(b"\0").decode("utf-8", "replace")
        sound = (
            0 < len(name.encode()) <= MAX_NAME_BYTES
            and ndim <= MAX_DIMENSIONS
            and code in BY_CODE
            and all(0 < size <= MAX_ELEMENTS for size in shape)
            and prod(shape) <= MAX_ELEMENTS
            and name not in fields
        )
        if not sound:
            raise DamageError(f"{path}: field {index} makes no sense", path=path, offset=offset)
        fields[name] = Field(shape, BY_CODE[code].name)
    return fields


def _field_table(header: SegmentHeader) -> bytes:
    image = _pack_header(header, 0, header.kind, ())
    return image[HEADER_RECORD_BYTES : header.run_table_offset]


def _table(buffer: Buffer, header: SegmentHeader) -> bytes:
    return bytes(buffer[HEADER_RECORD_BYTES : header.run_table_offset])


def _code(dtype: str) -> int:
    return next(entry.code for entry in BY_CODE.values() if entry.name == dtype)


def _expect(path: str, offset: int, what: str, expected: object, got: object) -> None:
    if expected != got:
        raise DamageError(
            f"{path}: {what} at byte {offset}: expected {expected!r}, got {got!r}",
            path=path,
            offset=offset,
            expected=expected,
            got=got,
        )
