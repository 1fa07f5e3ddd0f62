"""Golden files: what a released version wrote, every later one reads to the same values."""

from __future__ import annotations

import dataclasses
import json
import math
import runpy
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from pyengine._native.hashing import verify_image
from pyengine.errors import DamageError
from pyengine.format.buffer_header import (
    BufferHeader,
    DroppedRun,
    Extent,
    LaneRecord,
    SavedPriorities,
)
from pyengine.format.evaluations import EvaluationRecord, read_evaluations
from pyengine.format.levels import Level
from pyengine.format.manifest import ComponentRecord, FileRecord, Manifest
from pyengine.format.migrations import SCHEMA_VERSION, migrate
from pyengine.format.schema import PRIORITY_FIELD, Schema
from pyengine.format.segment import (
    KIND_PART,
    KIND_SEGMENT,
    Run,
    parse_header,
    verify_checksum,
)

REPOSITORY = Path(__file__).parents[3]
V1 = REPOSITORY / "tests" / "golden" / "v1"
V2 = V1.with_name("v2")
V4 = V1.with_name("v4")
TOOL = REPOSITORY / "tools" / "make_golden.py"
LINE = 0x0123456789ABCDEF


def _read(name):
    data = (V1 / name).read_bytes()
    header = parse_header(data, name)
    assert header.file_bytes == len(data)
    verify_checksum(data, header, name)
    assert verify_image(data) == -1
    return data, header


def _contents():
    return {path: path.read_bytes() for path in V1.rglob("*") if path.is_file()}


def _values(data, header):
    """{field: list of rows as bytes}."""
    return {
        f.name: [
            data[f.offset + i * f.row_bytes : f.offset + (i + 1) * f.row_bytes]
            for i in range(header.row_count)
        ]
        for f in header.fields
    }


def _check_rows(data, header):
    values = _values(data, header)
    rows = [(r.lane, r.first_row + i) for r in header.runs for i in range(r.row_count)]
    assert values["obs/image"] == [bytes((lane, row, 255 - row, 7)) for lane, row in rows]
    assert values["obs/speed"] == [struct.pack("<f", row + lane / 4)[2:] for lane, row in rows]
    assert values["reward"] == [struct.pack("<f", row * 0.5 - lane) for lane, row in rows]
    assert values["terminated"] == [bytes([row % 4 == 1]) for _, row in rows]
    assert values["@start"] == [bytes([row % 4 == 2]) for _, row in rows]


def test_segment_of_version_1_reads_to_its_rows():
    data, header = _read("segment.seg")
    assert (header.kind, header.line, header.row_capacity) == (KIND_SEGMENT, LINE, 4)
    assert header.runs == (Run(1, 8, 4),)
    assert [(f.name, f.dtype, f.shape) for f in header.fields] == [
        ("obs/image", "uint8", (2, 2)),
        ("obs/speed", "bfloat16", ()),
        ("reward", "float32", ()),
        ("terminated", "bool", ()),
        ("@start", "uint8", ()),
    ]
    _check_rows(data, header)


def test_part_of_version_1_reads_to_the_rows_of_its_lanes():
    data, header = _read("part.seg")
    assert (header.kind, header.line, header.row_count) == (KIND_PART, LINE, 6)
    assert header.runs == (Run(0, 12, 1), Run(1, 12, 3), Run(3, 4, 2))
    _check_rows(data, header)


def test_buffer_header_of_version_1_reads_to_its_values():
    data = (V1 / "buffer_header.json").read_bytes()
    header = BufferHeader.from_bytes(data, path="x")
    assert (header.ring, header.capacity, header.num_lanes, header.segment_rows) == (
        "replay",
        16,
        2,
        4,
    )
    assert header.lanes == (LaneRecord(12, 13, False), LaneRecord(7, 15, True))
    assert header.dropped == (DroppedRun(1, 7, 1),)
    assert header.extents[1] == Extent(1, 8, 4, "segment-0123456789abcdef-1-8-4-3.seg", 0)
    assert header.row_count == 8
    assert int(header.sampler["state"], 16) == 1 << 100
    assert header.mutable_file == "mutable.safetensors"
    schema = Schema.from_record(header.schema)
    assert list(schema.mutable_fields) == ["priority"]
    assert schema.episode_end == ("terminated",)


def test_header_of_a_prioritised_ring_reads_to_its_values():
    data = (V2 / "prioritized_header.json").read_bytes()
    header = BufferHeader.from_bytes(data, path="x")
    assert header.priorities == SavedPriorities(0.6, 1e-6, 12.25, 345)
    assert header.sampler["lost_updates"] == 2
    schema = Schema.from_record(header.schema)
    assert list(schema.mutable_fields) == [PRIORITY_FIELD]
    assert (schema[PRIORITY_FIELD].dtype, schema[PRIORITY_FIELD].default) == ("float32", 1.0)
    plain = BufferHeader.from_bytes((V1 / "buffer_header.json").read_bytes(), path="x")
    assert plain.priorities is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alpha", 1.5), ("alpha", None), ("epsilon", -1), ("highest", -0.5), ("highest", 1e39),
        ("highest", True), ("draws", 1.5), ("draws", -1),
    ],
)  # fmt: skip
def test_header_with_priorities_that_make_no_sense_is_refused(key, value):
    data = json.loads((V2 / "prioritized_header.json").read_bytes())
    data["sampler"]["priorities"][key] = value
    with pytest.raises(DamageError, match=f"sampler.priorities.{key}"):
        BufferHeader.from_bytes(json.dumps(data).encode(), path="x")


def test_manifest_of_version_1_reads_to_its_values():
    manifest = Manifest.from_bytes((V1 / "manifest.json").read_bytes(), path="x")
    assert (manifest.run_id, manifest.generation, manifest.sequence) == ("5f0c2a", 2, 17)
    assert (manifest.global_step, manifest.line) == (2345, f"{LINE:016x}")
    assert manifest.parent == "step-00001000.g0002.s0016"
    assert manifest.components[1] == ComponentRecord(
        "envs", "environment", "excluded", "they restart"
    )
    assert manifest.files[0] == FileRecord("model/policy.safetensors", 64, "0" * 14 + "aa", "all")
    assert manifest.files[2].covers == "segment"
    assert manifest.metrics == {"return": 12.5, "loss": math.inf}
    assert manifest.notes == {"seed": 3, "why": ["golden", None]}


def test_manifest_of_version_1_is_migrated():
    data = (V1 / "manifest.json").read_bytes()
    assert b'"schema_version": 1,' in data
    assert b"evaluations" not in data
    manifest = Manifest.from_bytes(data, path="x")
    assert (manifest.schema_version, manifest.evaluations) == (SCHEMA_VERSION, 0)


def test_manifest_and_evaluations_of_version_2_read_to_their_values():
    manifest = Manifest.from_bytes((V2 / "manifest.json").read_bytes(), path="x")
    assert (manifest.schema_version, manifest.evaluations) == (SCHEMA_VERSION, 2)
    older = Manifest.from_bytes((V1 / "manifest.json").read_bytes(), path="x")
    assert dataclasses.replace(manifest, evaluations=0) == older
    meta = (V2 / "components" / "meta.json").read_bytes()
    first, second = read_evaluations(meta, "x", expected=2)
    assert first == EvaluationRecord(
        1000, {"mean_return": 12.5, "worst": -math.inf}, "2025-03-01T11:00:00Z"
    )
    assert (second.step, second.recorded_at) == (2000, "2025-03-01T11:30:00Z")
    assert math.isnan(second.metrics["mean_return"])


def test_manifest_of_version_2_is_migrated():
    data = (V2 / "manifest.json").read_bytes()
    assert b'"schema_version": 2,' in data
    for key in (b"level", b"runtime", b"milestone", b"harmless", b'"type"'):
        assert key not in data
    manifest = Manifest.from_bytes(data, path="x")
    assert manifest.level.name == "partial"  # its environments are excluded, and who knows why
    assert (manifest.runtime, manifest.milestone) == ({}, False)
    assert [(one.type, one.harmless) for one in manifest.components] == [(None, False)] * 3


def test_a_manifest_of_version_2_without_exclusions_is_state_complete():
    document = json.loads((V2 / "manifest.json").read_bytes())
    document["components"] = [one for one in document["components"] if one["name"] != "envs"]
    assert migrate(document, "x")["level"]["name"] == "state-complete"


def test_manifest_of_version_3_reads_to_its_values():
    manifest = Manifest.from_bytes((V4 / "manifest.json").read_bytes(), path="x")
    assert manifest.schema_version == 3
    assert manifest.level == Level("partial", "at an epoch border", ("envs: they restart",))
    assert manifest.runtime == {"threads": 2, "devices": "cpu", "deterministic algorithms": True}
    assert manifest.milestone
    assert manifest.components[0].type == "torch.nn.modules.linear.Linear"
    assert manifest.components[2] == ComponentRecord(
        "logs", "excluded", "excluded", "only read", harmless=True
    )


@pytest.mark.parametrize("name", ["segment.seg", "part.seg"])
def test_this_version_still_writes_the_same_bytes(name):
    written = runpy.run_path(str(TOOL))["FILES"][name]()
    assert written == (V1 / name).read_bytes()


def test_golden_files_are_never_overwritten():
    before = _contents()
    done = subprocess.run(
        [sys.executable, TOOL, V1], cwd=REPOSITORY, env={"PYTHONPATH": str(REPOSITORY)}, check=False
    )
    assert done.returncode == 2
    assert _contents() == before
