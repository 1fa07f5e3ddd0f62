"""Write the golden files of a format version: small files that every later pyengine must read.

    python tools/make_golden.py tests/golden/v4

Files whose bytes lie in the directory of an older version beside it are left out. A version's files
are written once and never again: an existing directory is refused. What they
hold is told here and checked by tests/unit/format/test_golden_files.py and
tests/unit/capture/test_golden_components.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import fractions
import functools
import mmap
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyengine._native.hashing import seal_image
from pyengine.capture.build import build_component
from pyengine.capture.copiers.cpu import CpuCopier
from pyengine.capture.files import Json
from pyengine.capture.pickled import Pickled
from pyengine.capture.slot import StagingSlot
from pyengine.capture.staging import StagingLayout
from pyengine.format.buffer_header import BufferHeader, DroppedRun, Extent, LaneRecord
from pyengine.format.evaluations import EvaluationRecord, join_records
from pyengine.format.levels import Level
from pyengine.format.manifest import ComponentRecord, FileRecord, Manifest
from pyengine.format.schema import Field, Schema
from pyengine.format.segment import KIND_PART, KIND_SEGMENT, Run, header_image, plan_layout

LINE = 0x0123456789ABCDEF
SCHEMA = Schema(
    {
        "obs": {"image": ((2, 2), "uint8"), "speed": "bfloat16"},
        "reward": "float32",
        "terminated": "bool",
        "priority": Field((), "float64", mutable=True, default=1.0),
    },
    episode_end=("terminated",),
)
STACKED = Schema(
    {
        "obs": Field((3, 2), "uint8", stack=3),
        "reward": "float32",
        "next_obs": Field((3, 2), "uint8", stack=3, next_of="obs"),
        "done": "bool",
    },
    episode_end=("done",),
)
EVALUATIONS = (
    EvaluationRecord(1000, {"mean_return": 12.5, "worst": float("-inf")}, "2025-03-01T11:00:00Z"),
    EvaluationRecord(2000, {"mean_return": float("nan")}, "2025-03-01T11:30:00Z"),
)
SEGMENT_RUNS = (Run(1, 8, 4),)
PART_RUNS = (Run(0, 12, 1), Run(1, 12, 3), Run(3, 4, 2))


def row_values(lane: int, row: int) -> dict[str, bytes]:
    """Return what row `row` of `lane` holds: bytes by append field."""
    speed = struct.pack("<f", row + lane / 4)[2:]
    return {
        "obs/image": bytes((lane, row, 255 - row, 7)),
        "obs/speed": speed,
        "reward": struct.pack("<f", row * 0.5 - lane),
        "terminated": bytes((row % 4 == 1,)),
        "@start": bytes((row % 4 == 2 or row == 0,)),
    }


def stacked_values(lane: int, row: int) -> dict[str, bytes]:
    """Return a row of frames: two opening rows, then two transitions, the second of them an end."""
    return {
        "reward": struct.pack("<f", max(0, row - 1)),
        "next_obs": bytes((lane, row)),
        "done": bytes((row == 3,)),
        "@start": bytes(((3, 2, 0, 0)[row],)),
    }


def image(
    kind: int,
    runs: tuple[Run, ...],
    schema: Schema = SCHEMA,
    values_of: Callable[[int, int], dict[str, bytes]] = row_values,
) -> bytes:
    """Return a whole segment file with the rows of `runs`."""
    count = sum(run.row_count for run in runs)
    layout = plan_layout(schema.append_fields, count, run_capacity=len(runs))
    data = bytearray(layout.file_bytes)
    data[: layout.header_bytes] = header_image(layout, line=LINE, kind=kind, runs=runs)
    at = 0
    for run in runs:
        for row in range(run.first_row, run.first_row + run.row_count):
            values = values_of(run.lane, row)
            for field in layout.fields:
                begin = field.offset + at * field.row_bytes
                data[begin : begin + field.row_bytes] = values[field.name]
            at += 1
    seal_image(data)
    return bytes(data)


def segment() -> bytes:
    """Return a full segment: rows 8 to 11 of lane 1."""
    return image(KIND_SEGMENT, SEGMENT_RUNS)


def part() -> bytes:
    """Return a part with rows of lanes 0, 1 and 3."""
    return image(KIND_PART, PART_RUNS)


def stacked_segment() -> bytes:
    """Return a full segment of a ring with stacks: rows 0 to 3 of lane 0."""
    return image(KIND_SEGMENT, (Run(0, 0, 4),), STACKED, stacked_values)


def stacked_header() -> bytes:
    """Return the header of the ring whose one segment that is."""
    return BufferHeader(
        ring="replay",
        schema=STACKED.to_record(),
        capacity=16,
        num_lanes=1,
        segment_rows=4,
        line=f"{LINE:016x}",
        lanes=(LaneRecord(0, 4, True),),
        extents=(Extent(0, 0, 4, "stacked.seg", 0),),
        dropped=(),
        sampler={
            "kind": "pcg64",
            "state": f"{1:032x}",
            "increment": f"{3:032x}",
            "lost_updates": 0,
        },
        mutable_file=None,
    ).to_bytes()


def buffer_header() -> bytes:
    """Return the header of a ring of two lanes whose first rows were dropped."""
    full = "segment-0123456789abcdef-1-8-4-3.seg"
    open_rows = "segment-0123456789abcdef-part-4.seg"
    return BufferHeader(
        ring="replay",
        schema=SCHEMA.to_record(),
        capacity=16,
        num_lanes=2,
        segment_rows=4,
        line=f"{LINE:016x}",
        lanes=(LaneRecord(12, 13, False), LaneRecord(7, 15, True)),
        extents=(
            Extent(0, 12, 1, open_rows, 0),
            Extent(1, 8, 4, full, 0),
            Extent(1, 12, 3, open_rows, 1),
        ),
        dropped=(DroppedRun(1, 7, 1),),
        sampler={
            "kind": "pcg64",
            "state": f"{1 << 100:032x}",
            "increment": f"{3:032x}",
            "lost_updates": 2,
        },
        mutable_file="mutable.safetensors",
    ).to_bytes()


def prioritized_header() -> bytes:
    """Return the header of a ring of the same fields that draws by priority."""
    schema = Schema(
        {name: field for name, field in SCHEMA.items() if not field.mutable},
        episode_end=SCHEMA.episode_end,
    )
    header = BufferHeader.from_bytes(buffer_header(), path="buffer_header.json")
    priorities = {"alpha": 0.6, "epsilon": 1e-06, "highest": 12.25, "draws": 345}
    return dataclasses.replace(
        header,
        schema=schema.with_priorities().to_record(),
        sampler={**header.sampler, "priorities": priorities},
    ).to_bytes()


def manifest() -> bytes:
    """Return a manifest with a saved, an excluded and a ring component."""
    ring_files = ("buffer/replay/buffer_header.json", "buffer/replay/segment-a.seg")
    return Manifest(
        run_id="5f0c2a",
        generation=2,
        sequence=17,
        line=f"{LINE:016x}",
        global_step=2345,
        created_at="2025-03-01T12:00:00+00:00",
        parent="step-00001000.g0002.s0016",
        algorithm="dqn",
        versions={"pyengine": "0.1.0", "python": "3.11.9"},
        components=(
            ComponentRecord(
                "policy",
                "module",
                "saved",
                None,
                ("model/policy.safetensors",),
                64,
                "torch.nn.modules.linear.Linear",
            ),
            ComponentRecord("envs", "environment", "excluded", "they restart"),
            ComponentRecord("logs", "excluded", "excluded", "only read", harmless=True),
            ComponentRecord("replay", "ring", "saved", None, ring_files, 24576),
        ),
        files=(
            FileRecord("model/policy.safetensors", 64, "00000000000000aa", "all"),
            FileRecord(ring_files[0], 512, "00000000000000bb", "all"),
            FileRecord(ring_files[1], 24576, "00000000000000cc", "segment"),
        ),
        metrics={"return": 12.5, "loss": float("inf")},
        evaluations=len(EVALUATIONS),
        notes={"seed": 3, "why": ["golden", None]},
        level=Level("partial", "at an epoch border", ("envs: they restart",)),
        runtime={"threads": 2, "devices": "cpu", "deterministic algorithms": True},
        milestone=True,
    ).to_bytes()


def tracked_objects() -> dict[str, Any]:
    """Return objects of the kinds whose files differ, with values that no seed decides."""
    net = torch.nn.Linear(2, 3, dtype=torch.bfloat16)
    for parameter in net.parameters():
        values = torch.arange(parameter.numel(), dtype=parameter.dtype).reshape(parameter.shape)
        parameter.data.copy_(values / 4)
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.25, momentum=0.5)
    optimizer.step()
    generator = np.random.Generator(np.random.PCG64())
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": 1 << 100, "inc": 3},
        "has_uint32": 1,
        "uinteger": 7,
    }
    shared = [1.5, float("-inf")]
    counters = {
        "updates": 12,
        "long": list(range(100)),
        "shared": [shared, shared],
        "by lane": {0: (1, 2**80), 1: np.float32(0.5)},
        "bytes": b"\x00\xff",
        "grid": np.arange(6, dtype=np.int16).reshape(2, 3),
        "complex": np.array([1 - 2j], dtype=np.complex64),
    }
    return {
        "policy": net,
        "optimizer": optimizer,
        "explorer": generator,
        "counters": counters,
        "ratio": Pickled(get=lambda: fractions.Fraction(3, 7), set=print),
    }


@functools.cache
def components() -> dict[str, bytes]:
    """Return the component files of `tracked_objects()` by their paths."""
    captured = [build_component(name, value).capture() for name, value in tracked_objects().items()]
    meta = {
        "global_step": 2345,
        "created_at": "2025-03-01T12:00:00+00:00",
        "notes": {"seed": 3},
        "evaluations": Json(join_records([record.to_json() for record in EVALUATIONS])),
    }
    plan = StagingLayout().plan(captured, meta)
    memory = mmap.mmap(-1, plan.required_bytes)
    with StagingSlot(memory, CpuCopier()) as slot:
        slot.fill(plan)
    files = {}
    for file in plan.files:
        (piece,) = file.pieces
        assert not isinstance(piece, bytes)
        files[file.path] = memory[piece.offset : piece.offset + piece.length]
    return files


COMPONENT_PATHS = (
    "legacy/ratio.pkl",
    "meta.json",
    "model/policy.safetensors",
    "optimizer/optimizer.msgpack",
    "optimizer/optimizer.safetensors",
    "rng/explorer.msgpack",
    "state/counters.safetensors",
)

FILES: dict[str, Callable[[], bytes]] = {
    "segment.seg": segment,
    "part.seg": part,
    "buffer_header.json": buffer_header,
    "prioritized_header.json": prioritized_header,
    "stacked.seg": stacked_segment,
    "stacked_header.json": stacked_header,
    "manifest.json": manifest,
    **{
        f"components/{path}": functools.partial(lambda path: components()[path], path)
        for path in COMPONENT_PATHS
    },
}


def main() -> int:
    """Write all files into a directory that does not exist yet."""
    parser = argparse.ArgumentParser(description=__doc__, usage="%(prog)s DIRECTORY")
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        print(f"{directory} exists: golden files of a version never change", file=sys.stderr)
        return 2
    older = [path for path in directory.parent.iterdir() if path != directory]
    for name, make in FILES.items():
        data = make()
        if any((path / name).exists() and (path / name).read_bytes() == data for path in older):
            continue
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
