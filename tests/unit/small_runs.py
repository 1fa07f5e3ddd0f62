"""Small but real runs: snapshots with a model file, a ring of two lanes, segments and a part."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from types import SimpleNamespace

import pytest
import xxhash

from pyengine.catalog import claim as claim_module
from pyengine.catalog import commit
from pyengine.format import names, segment
from pyengine.format.buffer_header import BufferHeader, Extent, LaneRecord
from pyengine.format.manifest import ComponentRecord, FileRecord, Manifest
from pyengine.format.schema import Field
from pyengine.fs import durable

LINE = 0xAB
ROWS = 4


def segment_image(runs, *, kind=segment.KIND_SEGMENT, capacity=ROWS, line=LINE, fill=7):
    """Return a segment file whose checksum and block table are right."""
    fields = {"obs": Field((8,), "uint8"), "reward": Field((), "float32")}
    layout = segment.plan_layout(fields, capacity, run_capacity=max(1, len(runs)))
    image = bytearray(layout.file_bytes)
    image[: layout.header_bytes] = segment.header_image(layout, line=line, kind=kind, runs=runs)
    for field in layout.fields:
        image[field.offset : field.offset + 16] = bytes([fill]) * 16
    for block, offset, length in segment.iter_blocks(layout):
        digest = xxhash.xxh3_64_intdigest(image[offset : offset + length])
        struct.pack_into("<Q", image, layout.block_table_offset + 8 * block, digest)
    struct.pack_into("<Q", image, layout.file_bytes - 8, segment.checksum_of(image, layout))
    return bytes(image)


def _segment_record(path, image):
    (checksum,) = struct.unpack_from("<Q", image, len(image) - 8)
    return FileRecord(path, len(image), f"{checksum:016x}", "segment")


def _plain_record(path, data):
    return FileRecord(path, len(data), xxhash.xxh3_64_hexdigest(data), "all")


def stage(run_dir, *, generation=1, sequence=1, step=None, line=LINE, parent=None, attempt=0):
    """Put a snapshot together as a writer does; return (staged directory, manifest)."""
    step = sequence * 100 if step is None else step
    name = names.snapshot_name(step, generation, sequence)
    staged = commit.make_staging_directory(str(run_dir), generation, name, attempt)
    ring = os.path.join(staged, "buffer", "replay")
    durable.make_directory(ring)
    durable.make_directory(os.path.join(staged, "model"))
    images = {
        "segment-a.seg": segment_image([segment.Run(0, 0, ROWS)]),
        "segment-b.seg": segment_image([segment.Run(0, 4, ROWS)], fill=8),
        "segment-part.seg": segment_image(
            [segment.Run(0, 8, 2), segment.Run(1, 0, 3)], kind=segment.KIND_PART, capacity=8
        ),
    }
    header = BufferHeader(
        ring="replay",
        schema={"obs": [[8], "uint8"], "reward": [[], "float32"]},
        capacity=32,
        num_lanes=2,
        segment_rows=ROWS,
        line=names.line_text(line),
        lanes=(LaneRecord(1, 10, False), LaneRecord(0, 3, True)),
        extents=(
            Extent(0, 1, 3, "segment-a.seg", 1),
            Extent(0, 4, 4, "segment-b.seg", 0),
            Extent(0, 8, 2, "segment-part.seg", 0),
            Extent(1, 0, 3, "segment-part.seg", 2),
        ),
        dropped=(),
        sampler={},
        mutable_file=None,
    )
    plain = {"model/policy.safetensors": f"weights {name}".encode() * 50}
    plain["buffer/replay/buffer_header.json"] = header.to_bytes()
    records = []
    for path, data in plain.items():
        durable.write_file(staged, path, [data])
        records.append(_plain_record(path, data))
    for file, image in images.items():
        durable.write_file(ring, file, [image])
        records.append(_segment_record(f"buffer/replay/{file}", image))
    manifest = Manifest(
        run_id="run",
        generation=generation,
        sequence=sequence,
        line=names.line_text(line),
        global_step=step,
        created_at="2026-11-30T10:00:00Z",
        parent=parent,
        components=(
            ComponentRecord("policy", "module", "saved", None, ("model/policy.safetensors",), 10),
        ),
        files=tuple(records),
        metrics={"return": float("nan")},
    )
    return staged, manifest


def publish(run_dir, *, keep_last=3, begin=lambda: True, visible=None, **staging):
    """Stage and commit one snapshot."""
    staged, manifest = stage(run_dir, **staging)
    return commit.publish_snapshot(
        str(run_dir), staged, manifest, begin=begin, keep_last=keep_last, visible=visible
    )


def snapshot_names(run_dir):
    """Return what lies in snapshots/, temporaries included."""
    return sorted(os.listdir(os.path.join(str(run_dir), names.SNAPSHOTS)))


@pytest.fixture
def make():
    """The builders above, in one name."""
    return SimpleNamespace(
        stage=stage, publish=publish, snapshot_names=snapshot_names, segment_image=segment_image
    )


@pytest.fixture
def run(tmp_path):
    """A claimed run directory (generation 1)."""
    with claim_module.claim_run(str(tmp_path / "run")) as claim:
        yield claim


@pytest.fixture
def spawn():
    """Start Python processes that say a line and then wait; killed at the end."""
    children = []

    def start(code, *arguments, expect=None, env=None):
        child = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        children.append(child)
        if expect is not None:
            assert child.stdout.readline() == expect + "\n"
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
