"""Names parse back to exactly the text they came from, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine.format import names

numbers = st.integers(0, 2**63 - 1)
lines = st.integers(0, 2**64 - 1)


def test_documented_names():
    assert names.snapshot_name(2345, 2, 17) == "step-00002345.g0002.s0017"
    assert names.PoolName(0xAB, 3, 1024, 256, 9).text == "00000000000000ab-3-1024-256-9.seg"
    assert names.PartName(0xAB, 10).text == "00000000000000ab-part-10.seg"
    assert names.segment_link_name("x.seg") == "segment-x.seg"
    assert names.generation_name(1) == "0001"


@given(numbers, numbers, numbers)
def test_snapshot_names_round_trip(step, generation, sequence):
    name = names.parse_snapshot_name(names.snapshot_name(step, generation, sequence))
    assert name == names.SnapshotName(generation=generation, sequence=sequence, step=step)


@given(lines, numbers, numbers, numbers, numbers)
def test_pool_names_round_trip(line, lane, first_row, row_count, sequence):
    name = names.PoolName(line, lane, first_row, row_count, sequence)
    assert names.parse_pool_name(name.text) == name
    assert names.parse_part_name(name.text) is None
    part = names.PartName(line, sequence)
    assert names.parse_part_name(part.text) == part
    assert names.parse_pool_name(part.text) is None


@given(st.text(max_size=40) | st.from_regex(r"step-\d{1,30}\.g\d{1,30}\.s\d{1,30}"))
def test_no_text_parses_to_another_name(text):
    name = names.parse_snapshot_name(text)
    assert name is None or name.text == text


@pytest.mark.parametrize(
    "text",
    [
        "step-2345.g0002.s0017",
        "step-000002345.g0002.s0017",
        "step-00002345.g0002.s0017\n",
        "step-00002345.g0002.s0017.tmp",
        "step-٠٠٠٠٢٣٤٥.g0002.s0017",
        "step-9999999999999999999.g0002.s0017",
    ],
)
def test_near_misses_are_not_snapshots(text):
    assert names.parse_snapshot_name(text) is None


def test_order_is_generation_then_sequence():
    old = names.SnapshotName(generation=1, sequence=9, step=900)
    new = names.SnapshotName(generation=2, sequence=0, step=5)
    assert old < new


def test_temporaries_tell_their_generation():
    text = names.temporary_name(2, names.snapshot_name(5, 2, 1))
    assert names.is_temporary(text)
    assert not names.is_trash(text)
    assert names.parse_temporary_generation(text) == 2
    assert names.parse_temporary_generation(names.trash_name(12345, "x")) == 12345
    assert names.parse_temporary_generation(".tmp-x") is None


def test_logs_are_not_claims():
    assert names.parse_generation_name("0001") == 1
    assert names.parse_generation_name(names.generation_log_name(1)) is None
    assert names.parse_generation_name("00001") is None


@pytest.mark.parametrize("text", ["policy", "größe", "a.b", "x" * 100])
def test_component_names_that_can_be_file_names(text):
    assert names.is_component_name(text)


@pytest.mark.parametrize("text", ["", ".", "..", ".tmp-x", "a/b", "a\\b", "a\0", "a\n", "x" * 101])
def test_component_names_that_cannot(text):
    assert not names.is_component_name(text)
