"""Damaged segment files are always refused, with an error that names the file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_decoder import byte_table
from segment_images import FIELDS, segment_image

from pyengine._native.hashing import verify_image
from pyengine.errors import DamageError, FormatVersionError, TruncatedFileError
from pyengine.format import segment
from pyengine.format.schema import MAX_FIELDS, Field
from pyengine.format.segment import KIND_PART, KIND_SEGMENT, Run, header_image, plan_layout

RECORDS = (("Header record", 0), ("Field record", 128), ("Run record", 128 + 192 * 4))
FIELD = Field((), "int32")
ONE_RUN = (Run(0, 0, 4),)
IMAGE = segment_image(KIND_PART, (Run(0, 3, 40), Run(5, 0, 11)))


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
    title, base = data.draw(st.sampled_from(RECORDS))
    name, offset, size, _ = data.draw(st.sampled_from(byte_table(title)))
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
    image = segment._pack_header(layout, 0, KIND_SEGMENT, runs)
    with pytest.raises(DamageError):
        segment.parse_header(image, "x")


def layout_of(count=1, *, name="f", field=FIELD, rows=4, runs=1):
    """Return the layout of a file with `count` fields."""
    fields = {f"{name}{i}" if i else name: field for i in range(count)}
    return plan_layout(fields, rows, run_capacity=runs)


UNREADABLE = {
    "no field": (layout_of(0), ONE_RUN),
    "too many fields": (layout_of(MAX_FIELDS + 1), ONE_RUN),
    "a name too long": (layout_of(name="x" * 64), ONE_RUN),
    "no name": (layout_of(name=""), ONE_RUN),
    "no run": (layout_of(), ()),
    "more runs than there is room for": (layout_of(), ONE_RUN * 200),
    "more rows than there is room for": (layout_of(rows=3), ONE_RUN),
    "another kind": (layout_of(), ONE_RUN, 3),
    "a number too large": (layout_of(), (Run(1 << 32, 0, 4),)),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_no_reader_takes_is_not_written(case):
    layout, runs, *kind = UNREADABLE[case]
    with pytest.raises(ValueError, match="no reader"):
        header_image(layout, line=0, kind=kind[0] if kind else KIND_PART, runs=runs)


def test_the_largest_header_is_read():
    layout = layout_of(MAX_FIELDS)
    image = header_image(layout, line=0, kind=KIND_SEGMENT, runs=ONE_RUN)
    assert len(segment.parse_header(image, "x").fields) == MAX_FIELDS
