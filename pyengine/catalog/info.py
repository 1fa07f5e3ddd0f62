"""What is known of a snapshot, and of something that is wrong with one. Plain values."""

from __future__ import annotations

import copy
import os
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pyengine.errors import (
    DamageError,
    FormatVersionError,
    MalformedFileError,
    PyengineError,
    TruncatedFileError,
)
from pyengine.format.levels import WEIGHTS, Level
from pyengine.format.manifest import ComponentRecord, FileRecord, Manifest


@dataclass(frozen=True, slots=True, repr=False)
class SnapshotInfo:
    """A committed snapshot, as its manifest tells it.

    `path` is its directory, `line` and `parent` its history (16 hex; a snapshot name), `size_bytes`
    the bytes of all its files, shared with other snapshots or not, `evaluations` the number of
    evaluation records that it holds, `level` says how a run goes on from it, `runtime` what it ran
    on; a `milestone` is never pruned. The files themselves were not verified.
    """

    path: str
    name: str
    global_step: int
    generation: int
    sequence: int
    run_id: str
    line: str
    parent: str | None
    created_at: str
    size_bytes: int
    algorithm: str | None
    versions: dict[str, str]
    components: tuple[ComponentRecord, ...]
    files: tuple[FileRecord, ...]
    metrics: dict[str, float]
    evaluations: int
    notes: dict[str, Any]
    level: Level
    runtime: dict[str, Any]
    milestone: bool
    _by_path: dict[str, FileRecord] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # A restore asks several times for each of hundreds of files.
        object.__setattr__(self, "_by_path", {record.path: record for record in self.files})

    @classmethod
    def of(cls, path: str, manifest: Manifest) -> SnapshotInfo:
        """Describe the snapshot at `path` by its manifest."""
        return cls(
            path=path,
            name=manifest.name,
            global_step=manifest.global_step,
            generation=manifest.generation,
            sequence=manifest.sequence,
            run_id=manifest.run_id,
            line=manifest.line,
            parent=manifest.parent,
            created_at=manifest.created_at,
            size_bytes=manifest.size_bytes,
            algorithm=manifest.algorithm,
            versions=dict(manifest.versions),
            components=manifest.components,
            files=manifest.files,
            metrics=dict(manifest.metrics),
            evaluations=manifest.evaluations,
            notes=copy.deepcopy(manifest.notes),
            level=manifest.level,
            runtime=dict(manifest.runtime),
            milestone=manifest.milestone,
        )

    @property
    def order(self) -> tuple[int, int]:
        """What snapshots are ordered by: (generation, sequence). The step orders nothing."""
        return (self.generation, self.sequence)

    @property
    def is_weights_only(self) -> bool:
        """Whether it holds weights alone: nothing to go on training from."""
        return self.level.name == WEIGHTS

    def file(self, path: str) -> FileRecord | None:
        """Return the record of one file by its path below the snapshot, or None."""
        return self._by_path.get(path)

    def __repr__(self) -> str:
        saved = sum(component.status == "saved" for component in self.components)
        return (
            f"SnapshotInfo({self.path!r}, global_step={self.global_step}, line={self.line!r}, "
            f"created_at={self.created_at!r}, size_bytes={self.size_bytes}, "
            f"{saved} components, {len(self.files)} files)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON (metrics may hold NaN)."""
        values = asdict(self)
        del values["_by_path"]
        return values


ProblemKind = Literal["missing", "truncated", "corruption", "malformed", "version", "unreadable"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: with which file, of what kind, and where in it.

    "unreadable" (permission, I/O) proves nothing about the bytes; "malformed" ones make no sense
    although their checksum holds, so that no disk has changed them.
    """

    path: str
    kind: ProblemKind
    text: str
    offset: int | None = None
    expected: Any = None
    got: Any = None

    @classmethod
    def of(cls, error: PyengineError | OSError, path: str) -> Problem:
        """Describe an error that reading `path` raised."""
        if isinstance(error, OSError):
            missing = isinstance(error, FileNotFoundError)
            text = f"{path}: {os.strerror(error.errno) if error.errno else error}"
            return cls(path, "missing" if missing else "unreadable", text)
        if isinstance(error, FormatVersionError):
            return cls(path, "version", str(error), got=error.version)
        if isinstance(error, MalformedFileError):
            return cls(path, "malformed", str(error), error.offset)
        if isinstance(error, DamageError):
            truncated = isinstance(error, TruncatedFileError)
            return cls(
                path,
                "truncated" if truncated else "corruption",
                str(error),
                error.offset,
                error.expected,
                error.got,
            )
        return cls(path, "unreadable", str(error))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON."""
        record = asdict(self)
        for name in ("expected", "got"):
            if not isinstance(record[name], (int, float, str, type(None))):
                record[name] = repr(record[name])
        return record
