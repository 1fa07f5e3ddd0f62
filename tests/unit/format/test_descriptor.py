"""The descriptor reaches the writer as it was staged, or is refused."""

from __future__ import annotations

import msgpack
import pytest

from pyengine.errors import DamageError
from pyengine.format.buffer_header import DroppedRun, LaneRecord
from pyengine.format.descriptor import FilePlan, RingCut, SlotRange, SnapshotDescriptor
from pyengine.format.manifest import ComponentRecord

DESCRIPTOR = SnapshotDescriptor(
    sequence=17,
    generation=2,
    global_step=2345,
    created_at="2026-01-01T00:00:00Z",
    line="00000000deadbeef",
    algorithm="dqn",
    versions={"pyengine": "0.1.0"},
    metrics={"return": 1.5},
    notes={"nested": {"a": [1, None]}},
    components=(
        ComponentRecord("policy", "module", "saved", None, ("model/policy.safetensors",), 12),
        ComponentRecord("env", "environment", "excluded", "stateless", (), 0),
    ),
    files=(FilePlan("model/policy.safetensors", (b"header", SlotRange(4096, 6))),),
    rings=(
        RingCut("replay", (LaneRecord(5, 13, True), LaneRecord(0, 2, False)), {"capacity": 16}),
        RingCut("other", (LaneRecord(0, 0, False),), {}, "buffer/other/mutable.safetensors"),
        RingCut(
            "holed",
            (LaneRecord(0, 9, False),),
            {},
            dropped=(DroppedRun(0, 1, 2), DroppedRun(0, 5, 1)),
        ),
    ),
    static=("target",),
)


def test_a_descriptor_comes_back_equal() -> None:
    packed = DESCRIPTOR.pack()
    assert SnapshotDescriptor.unpack(packed) == DESCRIPTOR
    assert SnapshotDescriptor.unpack(memoryview(packed)) == DESCRIPTOR


def test_the_size_of_a_planned_file_counts_bytes_and_ranges() -> None:
    assert DESCRIPTOR.files[0].size_bytes == len(b"header") + 6


@pytest.mark.parametrize(
    "data",
    [
        b"",
        DESCRIPTOR.pack()[:-1],
        DESCRIPTOR.pack() + b"\0",
        msgpack.packb([1, 2]),
        msgpack.packb({"version": 3}),
        msgpack.packb({**msgpack.unpackb(DESCRIPTOR.pack()), "surprise": 1}),
        msgpack.packb({**msgpack.unpackb(DESCRIPTOR.pack()), "files": [["only a path"]]}),
    ],
)
def test_what_is_no_descriptor_is_refused(data: bytes) -> None:
    with pytest.raises(DamageError):
        SnapshotDescriptor.unpack(data)
