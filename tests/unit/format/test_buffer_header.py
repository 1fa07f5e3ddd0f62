"""The buffer header: covers the valid rows exactly, or is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine.errors import ConfigError, DamageError, FormatVersionError
from pyengine.format.buffer_header import BufferHeader, DroppedRun, Extent, LaneRecord

HEADER = BufferHeader(
    ring="replay",
    schema={"fields": [{"name": "obs", "shape": [4], "dtype": "uint8"}]},
    capacity=32,
    num_lanes=2,
    segment_rows=4,
    line="00000000000000ab",
    lanes=(LaneRecord(5, 21, True), LaneRecord(0, 3, False)),
    extents=(
        Extent(0, 5, 3, "segment-a.seg", 1),
        Extent(0, 8, 4, "segment-b.seg", 0),
        Extent(0, 16, 5, "segment-part.seg", 0),
        Extent(1, 0, 3, "segment-part.seg", 5),
    ),
    dropped=(DroppedRun(0, 12, 4),),
    sampler={"kind": "uniform", "rng": {"state": "1"}},
    mutable_file="mutable.safetensors",
)


def _read(changes=None, **fields):
    document = {**json.loads(HEADER.to_bytes()), **(changes or {}), **fields}
    return BufferHeader.from_bytes(json.dumps(document).encode(), path="h")


def test_header_round_trips():
    assert BufferHeader.from_bytes(HEADER.to_bytes(), path="h") == HEADER
    assert HEADER.row_count == 15


def test_heads_are_written_for_readers():
    assert [lane["head"] for lane in json.loads(HEADER.to_bytes())["lanes"]] == [5, 3]


def test_empty_ring_round_trips():
    empty = dataclasses.replace(
        HEADER, lanes=(LaneRecord(0, 0, False),) * 2, extents=(), dropped=(), mutable_file=None
    )
    assert BufferHeader.from_bytes(empty.to_bytes(), path="h") == empty


def test_order_of_extents_does_not_matter():
    reordered = dataclasses.replace(HEADER, extents=HEADER.extents[::-1])
    assert BufferHeader.from_bytes(reordered.to_bytes(), path="h") == reordered


@pytest.mark.parametrize(
    "extents",
    [
        HEADER.extents[1:],
        HEADER.extents[:-1],
        (*HEADER.extents, Extent(0, 8, 4, "again.seg", 0)),
        (*HEADER.extents, Extent(0, 21, 1, "beyond.seg", 0)),
        (*HEADER.extents, Extent(0, 4, 1, "before.seg", 0)),
        (*HEADER.extents, Extent(2, 0, 1, "no-lane.seg", 0)),
        (*HEADER.extents, Extent(1, 3, 0, "no-rows.seg", 0)),
        (*HEADER.extents[:1], Extent(0, 7, 5, "overlap.seg", 0), *HEADER.extents[2:]),
        (*HEADER.extents[:3], Extent(1, 0, 3, "../outside.seg", 0)),
    ],
)
def test_rows_not_covered_exactly_are_refused(extents):
    broken = dataclasses.replace(HEADER, extents=extents)
    with pytest.raises(ConfigError, match="extents"):
        broken.to_bytes()
    rows = [[e.lane, e.first_row, e.row_count, e.file, e.file_row] for e in extents]
    with pytest.raises(DamageError, match="extents"):
        _read(extents=rows)


@given(st.data())
def test_only_exact_partitions_pass(data):
    total = data.draw(st.integers(0, 40))
    tail = data.draw(st.integers(max(0, total - 16), total))
    cuts = sorted({tail, total, *data.draw(st.lists(st.integers(tail, total), max_size=5))})
    runs = list(itertools.pairwise(cuts))
    extents = [[0, a, b - a, "f.seg", 0] for a, b in runs]
    lane = {"head": total % 16, "tail": tail, "total_count": total, "break_pending": False}
    base = {"capacity": 16, "num_lanes": 1, "lanes": [lane], "dropped": []}
    assert _read(base, extents=extents).row_count == total - tail
    if extents:
        broken = [list(extent) for extent in extents]
        index = data.draw(st.integers(0, len(broken) - 1))
        broken[index][data.draw(st.sampled_from([1, 2]))] += data.draw(st.sampled_from([-1, 1]))
        with pytest.raises(DamageError):
            _read(base, extents=broken)


@pytest.mark.parametrize(
    "changes",
    [
        {"capacity": 33},
        {"capacity": 0},
        {"num_lanes": 0},
        {"segment_rows": 0},
        {"mutable_file": "../x"},
        {"mutable_file": "a/b"},
        {"lanes": []},
        {"lanes": [1, 2]},
        {"extents": [[0, 1, 2]]},
        {"extents": [[0, 1.5, 2, "x", 0]]},
        {"extents": [[0, True, 2, "x", 0]]},
        {"extents": [[0, -1, 2, "x", 0]]},
        {"extents": [[0, 2**63, 2, "x", 0]]},
        {"dropped": [[0, 1]]},
        {"schema": []},
        {"sampler": None},
        {"line": "0"},
    ],
)
def test_wrong_fields_are_named(changes):
    with pytest.raises(DamageError, match=next(iter(changes))):
        _read(changes)


@pytest.mark.parametrize("lane", [{"head": 4}, {"tail": 22}, {"tail": 4}, {"break_pending": 1}])
def test_impossible_lanes_are_refused(lane):
    lanes = json.loads(HEADER.to_bytes())["lanes"]
    lanes[0].update(lane)
    with pytest.raises(DamageError, match=next(iter(lane))):
        _read(lanes=lanes)


def test_number_of_lanes_must_agree():
    with pytest.raises(DamageError, match="lanes"):
        _read(num_lanes=1, lanes=json.loads(HEADER.to_bytes())["lanes"])


@pytest.mark.parametrize("version", [0, 3])
def test_other_version_is_typed(version):
    with pytest.raises(FormatVersionError):
        _read(version=version)


def test_only_rings_with_stacks_have_the_later_version():
    pair = [{"name": "obs"}, {"name": "next_obs", "next_of": "obs"}]
    stacked = dataclasses.replace(HEADER, schema={"fields": pair})
    assert (HEADER.version, stacked.version) == (1, 2)
    for header, wrong in ((HEADER, 2), (stacked, 1)):
        document = json.loads(header.to_bytes())
        assert document["version"] == header.version
        document["version"] = wrong
        with pytest.raises(DamageError, match="version"):
            BufferHeader.from_bytes(json.dumps(document).encode(), path="h")
