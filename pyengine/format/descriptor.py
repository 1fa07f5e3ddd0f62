"""The descriptor: all that the trainer tells the writer about one snapshot.

It lies, packed, in the staging slot beside the bytes that it talks about, so that a restarted
writer finds it again. Plain msgpack values, no pickle. It never reaches the disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgpack

from pyengine.errors import DamageError
from pyengine.format.buffer_header import DroppedRun, LaneRecord
from pyengine.format.levels import UNDECLARED, Level
from pyengine.format.manifest import ComponentRecord

_VERSION = 3
_WHAT = "snapshot descriptor"


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Bytes [offset, offset + length) of the staging slot's arena."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A file of the snapshot: its path below the snapshot (POSIX) and what it is made of."""

    path: str
    pieces: tuple[bytes | SlotRange, ...]

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return sum(
            piece.length if isinstance(piece, SlotRange) else len(piece) for piece in self.pieces
        )


@dataclass(frozen=True, slots=True)
class RingCut:
    """A ring at the cut.

    `name` is the ring's component and directory name, `header` has schema, capacity, num_lanes,
    segment_rows and sampler; `mutable_file` is the path of the FilePlan with the mutable fields.
    `dropped` are the rows that were given up.
    `arena` identifies the memory that the rows lie in (`Arena.identity`): a restore gives the ring
    another one, whose rows under the same ids are not these. None: not known, not compared.
    """

    name: str
    lanes: tuple[LaneRecord, ...]
    header: dict[str, Any]
    mutable_file: str | None = None
    arena: str | None = None
    dropped: tuple[DroppedRun, ...] = ()

    @property
    def packed_bytes(self) -> int:
        """Bytes that it takes in a packed descriptor."""
        return len(msgpack.packb(_pack_ring(self)))


@dataclass(frozen=True, slots=True)
class SnapshotDescriptor:
    """One snapshot as the trainer staged it; see Manifest for fields of the same name.

    Components of kind "ring" get their files and bytes from the writer. `static` names components
    whose bytes may stay the same while the step advances. `line` is 16 hexadecimal digits.
    """

    sequence: int
    generation: int
    global_step: int
    created_at: str
    line: str
    algorithm: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    evaluations: int = 0
    notes: dict[str, Any] = field(default_factory=dict)
    components: tuple[ComponentRecord, ...] = ()
    files: tuple[FilePlan, ...] = ()
    rings: tuple[RingCut, ...] = ()
    static: tuple[str, ...] = ()
    level: Level = UNDECLARED
    runtime: dict[str, Any] = field(default_factory=dict)
    milestone: bool = False

    def pack(self) -> bytes:
        """Return the descriptor as bytes."""
        packed: bytes = msgpack.packb(
            {
                "version": _VERSION,
                "sequence": self.sequence,
                "generation": self.generation,
                "global_step": self.global_step,
                "created_at": self.created_at,
                "line": self.line,
                "algorithm": self.algorithm,
                "versions": self.versions,
                "metrics": self.metrics,
                "evaluations": self.evaluations,
                "notes": self.notes,
                "components": [_pack_component(component) for component in self.components],
                "files": [
                    [plan.path, [_pack_piece(p) for p in plan.pieces]] for plan in self.files
                ],
                "rings": [_pack_ring(ring) for ring in self.rings],
                "static": list(self.static),
                "level": [self.level.name, self.level.condition, list(self.level.reasons)],
                "runtime": self.runtime,
                "milestone": self.milestone,
            }
        )
        return packed

    @classmethod
    def unpack(cls, buffer: bytes | bytearray | memoryview) -> SnapshotDescriptor:
        """Read what `pack` wrote; DamageError where it is something else."""
        try:
            record = msgpack.unpackb(buffer)
            version = record.pop("version")
            if version != _VERSION:
                raise ValueError(f"version {version}")
            name, condition, reasons = record.pop("level")
            lists: dict[str, Any] = {
                "components": tuple(_component(item) for item in record.pop("components")),
                "files": tuple(_file(item) for item in record.pop("files")),
                "rings": tuple(_ring(item) for item in record.pop("rings")),
                "static": tuple(record.pop("static")),
                "level": Level(name, condition, tuple(reasons)),
            }
            return cls(**record, **lists)
        except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
            raise DamageError(f"{_WHAT}: {error!r}", path=_WHAT) from error


def _pack_component(component: ComponentRecord) -> list[Any]:
    return [
        component.name,
        component.kind,
        component.status,
        component.reason,
        list(component.files),
        component.bytes,
        component.type,
        component.harmless,
    ]


def _component(item: list[Any]) -> ComponentRecord:
    name, kind, status, reason, files, size_bytes, of_type, harmless = item
    return ComponentRecord(name, kind, status, reason, tuple(files), size_bytes, of_type, harmless)


def _pack_piece(piece: bytes | SlotRange) -> Any:
    return [piece.offset, piece.length] if isinstance(piece, SlotRange) else bytes(piece)


def _file(item: list[Any]) -> FilePlan:
    path, pieces = item
    return FilePlan(
        path,
        tuple(piece if isinstance(piece, bytes) else SlotRange(*piece) for piece in pieces),
    )


def _pack_ring(ring: RingCut) -> list[Any]:
    lanes = [[lane.tail, lane.total_count, lane.break_pending] for lane in ring.lanes]
    dropped = [[run.lane, run.first_row, run.row_count] for run in ring.dropped]
    return [ring.name, lanes, ring.header, ring.mutable_file, ring.arena, dropped]


def _ring(item: list[Any]) -> RingCut:
    name, lanes, header, mutable_file, arena, dropped = item
    cut = tuple(LaneRecord(*lane) for lane in lanes)
    runs = tuple(DroppedRun(*run) for run in dropped)
    return RingCut(name, cut, header, mutable_file, arena, runs)
