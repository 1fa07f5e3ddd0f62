"""FORMAT.md, segment chapters: page, Python and C say the same, and damage is always refused."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from math import prod
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import pyengine.format
from pyengine._native.hashing import seal_image, verify_image
from pyengine.errors import DamageError, FormatVersionError, TruncatedFileError
from pyengine.format import dtypes, segment
from pyengine.format.schema import MAX_DIMENSIONS, MAX_FIELDS, MAX_NAME_BYTES, START_FIELD, Schema
from pyengine.format.segment import KIND_PART, KIND_SEGMENT, Run, header_image, plan_layout

PAGE = Path(pyengine.format.__file__).with_name("FORMAT.md").read_text(encoding="utf-8")
REPOSITORY = Path(__file__).parents[3]
CORE = REPOSITORY / "csrc" / "core"
GOLDEN = REPOSITORY / "tests" / "golden" / "v1" / "segment.seg"
WIDTHS = {"u32": 4, "u64": 8, "u64[8]": 64}
RECORDS = {
    "Header record": ("pe_segment_header", segment.HEADER, segment.HEADER_RECORD_BYTES),
    "Field record": ("pe_field_record", segment.FIELD, segment.FIELD_RECORD_BYTES),
    "Run record": ("pe_run_record", segment.RUN, segment.RUN.size),
}


def _chapter(title):
    return re.split(r"^#+ ", PAGE.split(f"### {title}\n")[1], flags=re.MULTILINE)[0]


def _rows(title):
    lines = re.findall(r"^\| *(\d.*?) *\|$", _chapter(title), re.MULTILINE)
    return [tuple(cell.strip() for cell in line.split("|")) for line in lines]


def _byte_table(title):
    """(name, offset, bytes, type) of each row of a byte table."""
    return [
        (name.strip("`"), int(offset), int(size), kind)
        for offset, size, kind, name, _ in (row for row in _rows(title) if len(row) == 5)
    ]


@pytest.mark.parametrize("title", RECORDS)
def test_byte_tables_have_neither_gaps_nor_overlaps(title):
    cursor = 0
    for name, offset, size, kind in _byte_table(title):
        assert offset == cursor, name
        assert WIDTHS.get(kind, size) == size, name
        cursor += size
    assert cursor == RECORDS[title][2]
    assert f"{cursor} bytes" in _chapter(title)


@pytest.mark.parametrize("title", RECORDS)
def test_structs_of_python_have_the_widths_of_the_page(title):
    _, packed, _ = RECORDS[title]
    codes = re.findall(r"(\d*)([sIQ])", packed.format)
    widths = []
    for count, code in codes:
        if code == "s":
            widths.append(int(count))
        else:
            widths += [struct.calcsize(code)] * int(count or 1)
    paged = []
    for _, _, size, kind in _byte_table(title):
        paged += [8] * 8 if kind == "u64[8]" else [size]
    assert paged[: len(widths)] == widths
    tail = _byte_table(title)[len(_byte_table(title)) - (len(paged) - len(widths)) :]
    assert all(name.startswith("reserved") for name, *_ in tail)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_structs_of_c_have_the_offsets_of_the_page(tmp_path):
    fields = [
        (struct_name, name)
        for title, (struct_name, _, _) in RECORDS.items()
        for name, *_ in _byte_table(title)
    ]
    prints = "\n".join(
        f'printf("%zu %zu\\n", offsetof(struct {s}, {n}), sizeof(((struct {s} *)0)->{n}));'
        for s, n in fields
    )
    constants = (
        'printf("%s %u %u %u %u %u %u %u\\n", PE_SEGMENT_MAGIC, PE_SEGMENT_VERSION,'
        " PE_KIND_SEGMENT, PE_KIND_PART, PE_PAGE_BYTES, PE_TRAILER_BYTES,"
        " (unsigned)PE_MAX_DIMENSIONS, (unsigned)PE_NAME_BYTES);"
    )
    source = tmp_path / "offsets.c"
    source.write_text(
        f'#include <stdio.h>\n#include "format.h"\nint main(void) {{\n{prints}\n{constants}\n}}\n'
    )
    program = tmp_path / "offsets"
    subprocess.run(["cc", "-std=c11", "-I", str(CORE), str(source), "-o", str(program)], check=True)
    *lines, last = subprocess.run(
        [program], check=True, capture_output=True, text=True
    ).stdout.split("\n")[:-1]
    paged = [f"{offset} {size}" for title in RECORDS for _, offset, size, _ in _byte_table(title)]
    assert lines == paged
    assert last == f"PESEGMNT 1 1 2 4096 8 {MAX_DIMENSIONS} {MAX_NAME_BYTES + 1}"


def test_page_lists_the_dtypes():
    rows = [row for row in _rows("Field record") if len(row) == 3]
    listed = [(name, int(code), int(size)) for code, name, size in rows]
    assert listed == [(d.name, d.code, d.item_bytes) for d in dtypes.BY_NAME.values()]


def test_page_states_the_limits():
    assert f"1 to {MAX_FIELDS}" in _chapter("Header record")
    assert f"at most {segment._MAX_RUNS}" in _chapter("Header record")
    assert f"1 to {MAX_NAME_BYTES} bytes" in _chapter("Field record")
    assert f"at most {segment.BLOCK_BYTES} bytes" in _chapter("Blocks")


def test_rule_for_rows_of_a_segment_gives_the_examples_of_the_page():
    examples = [tuple(map(int, row)) for row in _rows("Rows of a segment") if len(row) == 3]
    assert len(examples) == 5
    for row_bytes, rows_per_lane, rows in examples:
        assert segment.segment_rows(row_bytes, rows_per_lane) == rows


@given(st.integers(1, 1 << 27), st.integers(1, 1 << 24))
def test_rows_of_a_segment_follow_the_page(row_bytes, rows_per_lane):
    powers = [1 << k for k in range(25)]
    large = [
        r for r in powers if (r <= rows_per_lane // 64 and r * row_bytes <= 32 << 20) or r == 1
    ]
    expected = large[-1]
    if expected * row_bytes < 256 << 10:
        limit = max(1, rows_per_lane // 4)
        enough = [r for r in powers if r >= expected and (r * row_bytes >= 256 << 10)]
        within = [r for r in powers if expected <= r <= limit] or [expected]
        expected = min(enough[0], within[-1]) if enough else within[-1]
    assert segment.segment_rows(row_bytes, rows_per_lane) == expected


def test_example_of_the_page_is_the_golden_segment():
    data = GOLDEN.read_bytes()
    lines = re.findall(r"^([0-9a-f]{5})  ((?:[0-9a-f]{2} )+)", _chapter("Example"), re.MULTILINE)
    assert len(lines) >= 20
    for offset, octets in lines:
        begin, expected = int(offset, 16), bytes.fromhex(octets)
        assert data[begin : begin + len(expected)] == expected, offset


def decode_by_the_page(data):
    """Return ({field: array of all rows}, runs), with nothing but struct, NumPy and XXH3."""
    at = {name: (offset, size) for name, offset, size, _ in _byte_table("Header record")}

    def number(table, name, base=0):
        offset, size = table[name]
        return int.from_bytes(data[base + offset : base + offset + size], "little")

    assert data[:8] == b"PESEGMNT"
    file_bytes, table_at = number(at, "file_bytes"), number(at, "block_table_offset")
    assert len(data) == file_bytes
    covered = data[: number(at, "header_bytes")] + data[table_at : file_bytes - 8]
    assert xxhash.xxh3_64_intdigest(covered) == int.from_bytes(data[-8:], "little")
    names = {int(code): name for code, name, _ in (r for r in _rows("Field record") if len(r) == 3)}
    columns = {name: (offset, size) for name, offset, size, _ in _byte_table("Field record")}
    run_columns = {name: (offset, size) for name, offset, size, _ in _byte_table("Run record")}
    fields, rows = {}, number(at, "row_count")
    for index in range(number(at, "field_count")):
        base = 128 + 192 * index
        name = data[base : base + 64].rstrip(b"\0").decode()
        dims = number(columns, "dimensions", base)
        shape = struct.unpack_from(f"<{dims}Q", data, base + 72)
        kind = names[number(columns, "dtype", base)]
        item = np.dtype("uint16" if kind == "bfloat16" else kind).newbyteorder("<")
        assert number(columns, "row_bytes", base) == prod(shape) * item.itemsize
        start, size = number(columns, "offset", base), number(columns, "region_bytes", base)
        step = number(columns, "row_bytes", base) << number(columns, "block_shift", base)
        blocks = number(columns, "block_count", base)
        for block in range(blocks):
            end = size if block == blocks - 1 else (block + 1) * step
            (stored,) = struct.unpack_from(
                "<Q", data, table_at + 8 * (number(columns, "first_block", base) + block)
            )
            assert xxhash.xxh3_64_intdigest(data[start + block * step : start + end]) == stored
        fields[name] = np.frombuffer(data, item, rows * prod(shape), start).reshape(rows, *shape)
    table = 128 + 192 * number(at, "field_count")
    runs = [
        tuple(
            number(run_columns, column, table + 24 * i)
            for column in ("lane", "first_row", "row_count")
        )
        for i in range(number(at, "run_count"))
    ]
    return fields, runs


ROWS = 9000
ONE_RUN = (Run(2, ROWS, ROWS),)
FIELDS = Schema({"obs": ((4, 5), "int16"), "half": "float16", "flag": "bool"}).append_fields


def _image(kind=KIND_SEGMENT, runs=ONE_RUN):
    count = sum(run.row_count for run in runs)
    layout = plan_layout(FIELDS, count, run_capacity=len(runs))
    data = bytearray(layout.file_bytes)
    data[: layout.header_bytes] = header_image(layout, line=77, kind=kind, runs=runs)
    random = np.random.default_rng(5)
    for field in layout.fields:
        size = count * field.row_bytes
        data[field.offset : field.offset + size] = random.bytes(size)
    seal_image(data)
    return bytes(data)


@pytest.mark.parametrize(
    ("kind", "runs"),
    [
        (KIND_SEGMENT, ONE_RUN),
        (KIND_PART, (Run(0, 3, 2), Run(5, 0, 1), Run(6, 1 << 40, 7))),
    ],
)
def test_a_file_can_be_decoded_from_the_page_alone(kind, runs):
    data = _image(kind, runs)
    fields, read_runs = decode_by_the_page(data)
    header = segment.parse_header(data, "x")
    assert read_runs == [(run.lane, run.first_row, run.row_count) for run in header.runs]
    assert header.runs == tuple(runs)
    assert list(fields) == ["obs", "half", "flag", START_FIELD]
    random = np.random.default_rng(5)
    for field in header.fields:
        assert fields[field.name].tobytes() == random.bytes(header.row_count * field.row_bytes)


def test_blocks_cover_the_regions_exactly():
    header = segment.parse_header(_image(), "x")
    cursor = header.header_bytes
    for number, (block, offset, length) in enumerate(segment.iter_blocks(header)):
        assert (block, offset) == (number, cursor)
        cursor += length
    assert cursor == header.block_table_offset
    assert number + 1 == header.block_count > len(header.fields)


IMAGE = _image(KIND_PART, (Run(0, 3, 40), Run(5, 0, 11)))


def _refuses(data):
    """Whether a reader that follows the order of the page refuses `data`, with a typed error."""
    try:
        header = segment.parse_header(data, "file")
        segment.verify_checksum(data, header, "file")
    except (DamageError, FormatVersionError) as error:
        return error.path == "file"
    return header.file_bytes != len(data) or verify_image(data) >= 0


def test_an_undamaged_file_is_accepted():
    assert not _refuses(IMAGE)


# Half of the flips go where the meaning is dense.
PLACES = st.one_of(st.integers(0, 1200 * 8 - 1), st.integers(0, len(IMAGE) * 8 - 1))


@given(st.lists(PLACES, min_size=1, max_size=4, unique=True))
def test_flipped_bits_are_always_refused(bits):
    data = bytearray(IMAGE)
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
    assert _refuses(bytes(data))


@given(st.integers(0, len(IMAGE) - 1))
def test_a_truncated_file_is_always_refused(size):
    with pytest.raises(TruncatedFileError) as caught:
        segment.verify_checksum(IMAGE[:size], segment.parse_header(IMAGE[:size], "x"), "x")
    assert caught.value.got == caught.value.offset == size
    assert caught.value.expected > size


@given(st.binary(max_size=300), st.integers(0, 1200))
def test_foreign_bytes_in_the_header_are_always_refused(octets, at):
    data = IMAGE[:at] + octets + IMAGE[at + len(octets) :]
    assert data == IMAGE or _refuses(data)


@given(st.data())
def test_any_number_in_any_header_field_is_refused_or_harmless(data):
    title = data.draw(st.sampled_from(list(RECORDS)))
    name, offset, size, _ = data.draw(st.sampled_from(_byte_table(title)))
    base = {"Header record": 0, "Field record": 128, "Run record": 128 + 192 * 4}[title]
    limit = (1 << 8 * min(size, 8)) - 1
    value = data.draw(st.one_of(st.integers(0, 70000), st.integers(0, limit)))
    image = bytearray(IMAGE)
    raw = min(value, limit).to_bytes(size, "little")
    image[base + offset : base + offset + size] = raw
    assert bytes(image) == IMAGE or _refuses(bytes(image)), name


def test_a_newer_version_is_named():
    image = bytearray(IMAGE)
    image[8] = 9
    with pytest.raises(FormatVersionError) as caught:
        segment.parse_header(image, "x")
    assert caught.value.version == 9


@pytest.mark.parametrize("count", [0, 2])
def test_a_segment_has_exactly_one_run(count):
    runs = [Run(0, 4 * i, 2) for i in range(count)]
    layout = plan_layout(FIELDS, 4, run_capacity=max(1, count))
    image = header_image(layout, line=0, kind=KIND_SEGMENT, runs=runs)
    with pytest.raises(DamageError):
        segment.parse_header(image, "x")
