"""The quick look at a full segment's file sees what the long one sees, or nothing."""

from __future__ import annotations

import os
import random

import pytest

from pyengine._native.hashing import seal_image
from pyengine.format.frame import FullHeaders, read_full_frame
from pyengine.format.schema import Schema
from pyengine.format.segment import (
    KIND_PART,
    KIND_SEGMENT,
    Run,
    block_hashes,
    header_image,
    parse_header,
    plan_layout,
)

SCHEMA = Schema({"obs": ((300,), "uint8"), "reward": "float32"})
ROWS = 512
LAYOUT = plan_layout(SCHEMA.append_fields, ROWS)


def image_of(layout, *, line=0x1234_5678_9ABC_DEF0, kind=KIND_SEGMENT, runs=None):
    runs = runs or [Run(3, 7 * ROWS, ROWS)]
    image = bytearray(random.Random(1).randbytes(layout.file_bytes))
    image[: layout.header_bytes] = header_image(layout, line=line, kind=kind, runs=runs)
    return image, seal_image(image)


def look(path, image, checksum):
    path.write_bytes(image)
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_full_frame(fd, FullHeaders(LAYOUT), checksum)
    finally:
        os.close(fd)


def test_a_full_segment_is_seen_as_the_page_says(tmp_path):
    image, checksum = image_of(LAYOUT)
    header, hashes = look(tmp_path / "file", image, checksum)
    assert header == parse_header(image, "file")
    assert tuple(hashes) == block_hashes(image, header)


@pytest.mark.parametrize(
    "changes",
    [
        {"runs": [Run(3, 7 * ROWS, ROWS - 1)]},
        {"kind": KIND_PART},
    ],
    ids=["not full", "a part"],
)
def test_other_files_are_left_to_the_long_look(tmp_path, changes):
    image, checksum = image_of(LAYOUT, **changes)
    assert look(tmp_path / "file", image, checksum) is None


def test_another_layout_or_size_is_left_to_the_long_look(tmp_path):
    other = plan_layout(Schema({"obs": ((300,), "int8"), "reward": "float32"}).append_fields, ROWS)
    image, checksum = image_of(other)
    assert look(tmp_path / "file", image, checksum) is None
    image, checksum = image_of(LAYOUT)
    assert look(tmp_path / "file", image[:-1], checksum) is None
    assert look(tmp_path / "file", image[:4096], checksum) is None
    assert look(tmp_path / "file", image + bytes(1), checksum) is None


def test_no_changed_byte_of_header_or_table_passes(tmp_path):
    image, checksum = image_of(LAYOUT)
    assert look(tmp_path / "file", image, checksum ^ 1) is None
    rng = random.Random(2)
    table = range(LAYOUT.block_table_offset, LAYOUT.file_bytes)
    places = [
        *range(0, 600, 7),
        *rng.sample(range(LAYOUT.header_bytes), 50),
        *rng.sample(table, 50),
    ]
    for place in places:
        spoilt = bytearray(image)
        spoilt[place] ^= 1 << rng.randrange(8)
        assert look(tmp_path / "file", spoilt, checksum) is None, place


def test_bytes_of_a_header_that_no_writer_writes_do_not_pass_with_a_right_checksum(tmp_path):
    """The checksum is the manifest's: it may have been written so."""
    rng = random.Random(3)
    free = {*range(16, 24), *range(LAYOUT.run_table_offset, LAYOUT.run_table_offset + 24)}
    for place in rng.sample(sorted(set(range(LAYOUT.header_bytes)) - free), 60):
        image, _ = image_of(LAYOUT)
        image[place] ^= 1 << rng.randrange(8)
        assert FullHeaders(LAYOUT).find(image) is None, place
