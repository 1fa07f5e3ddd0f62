"""FORMAT.md, segment chapters: page, Python and C say the same."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_decoder import byte_table, chapter, decode_segment, numbered_rows
from segment_images import ONE_RUN, segment_image

from pyengine.format import dtypes, segment
from pyengine.format.field import MAX_DIMENSIONS, MAX_ELEMENTS
from pyengine.format.schema import (
    MAX_FIELDS,
    MAX_NAME_BYTES,
    START_FIELD,
)
from pyengine.format.segment import KIND_PART, KIND_SEGMENT, Run

REPOSITORY = Path(__file__).parents[3]
CORE = REPOSITORY / "csrc" / "core"
GOLDEN = REPOSITORY / "tests" / "golden" / "v1" / "segment.seg"
WIDTHS = {"u32": 4, "u64": 8, "u64[8]": 64}
RECORDS = {
    "Header record": ("pe_segment_header", segment.HEADER, segment.HEADER_RECORD_BYTES),
    "Field record": ("pe_field_record", segment.FIELD, segment.FIELD_RECORD_BYTES),
    "Run record": ("pe_run_record", segment.RUN, segment.RUN.size),
}


@pytest.mark.parametrize("title", RECORDS)
def test_byte_tables_have_neither_gaps_nor_overlaps(title):
    cursor = 0
    for name, offset, size, kind in byte_table(title):
        assert offset == cursor, name
        assert WIDTHS.get(kind, size) == size, name
        cursor += size
    assert cursor == RECORDS[title][2]
    assert f"{cursor} bytes" in chapter(title)


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
    for _, _, size, kind in byte_table(title):
        paged += [8] * 8 if kind == "u64[8]" else [size]
    assert paged[: len(widths)] == widths
    tail = byte_table(title)[len(byte_table(title)) - (len(paged) - len(widths)) :]
    assert all(name.startswith("reserved") for name, *_ in tail)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_structs_of_c_have_the_offsets_of_the_page(tmp_path):
    fields = [
        (struct_name, name)
        for title, (struct_name, _, _) in RECORDS.items()
        for name, *_ in byte_table(title)
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
    paged = [f"{offset} {size}" for title in RECORDS for _, offset, size, _ in byte_table(title)]
    assert lines == paged
    assert last == f"PESEGMNT 1 1 2 4096 8 {MAX_DIMENSIONS} {MAX_NAME_BYTES + 1}"


def test_page_lists_the_dtypes():
    rows = [row for row in numbered_rows("Field record") if len(row) == 3]
    listed = [(name, int(code), int(size)) for code, name, size in rows]
    assert listed == [(d.name, d.code, d.item_bytes) for d in dtypes.BY_NAME.values()]


def test_page_states_the_limits():
    assert f"1 to {MAX_FIELDS}" in chapter("Header record")
    assert f"at most {segment._MAX_RUNS}" in chapter("Header record")
    assert f"1 to {MAX_NAME_BYTES} bytes" in chapter("Field record")
    assert f"at most {MAX_ELEMENTS} elements" in chapter("Field record")
    assert f"at most {segment.BLOCK_BYTES} bytes" in chapter("Blocks")


def test_rule_for_rows_of_a_segment_gives_the_examples_of_the_page():
    examples = [tuple(map(int, row)) for row in numbered_rows("Rows of a segment") if len(row) == 3]
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
    lines = re.findall(r"^([0-9a-f]{5})  ((?:[0-9a-f]{2} )+)", chapter("Example"), re.MULTILINE)
    assert len(lines) >= 20
    for offset, octets in lines:
        begin, expected = int(offset, 16), bytes.fromhex(octets)
        assert data[begin : begin + len(expected)] == expected, offset


@pytest.mark.parametrize(
    ("kind", "runs"),
    [
        (KIND_SEGMENT, ONE_RUN),
        (KIND_PART, (Run(0, 3, 2), Run(5, 0, 1), Run(6, 1 << 40, 7))),
    ],
)
def test_a_file_can_be_decoded_from_the_page_alone(kind, runs):
    data = segment_image(kind, runs)
    fields, read_runs = decode_segment(data)
    header = segment.parse_header(data, "x")
    assert read_runs == [(run.lane, run.first_row, run.row_count) for run in header.runs]
    assert header.runs == tuple(runs)
    assert list(fields) == ["obs", "half", "flag", START_FIELD]
    random = np.random.default_rng(5)
    for field in header.fields:
        assert fields[field.name].tobytes() == random.bytes(header.row_count * field.row_bytes)


def test_blocks_cover_the_regions_exactly():
    header = segment.parse_header(segment_image(), "x")
    cursor = header.header_bytes
    for number, (block, offset, length) in enumerate(segment.iter_blocks(header)):
        assert (block, offset) == (number, cursor)
        cursor += length
    assert cursor == header.block_table_offset
    assert number + 1 == header.block_count > len(header.fields)
