"""manifest.json: what a snapshot is and every file that belongs to it.

A JSON object whose last line is `"xxh3_64": "<16 hex>"}`, the XXH3-64 of all bytes before that
line. It is the last file of a snapshot to appear: without it there is no snapshot. The page is
pyengine/format/FORMAT.md.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from datetime import datetime, timezone
from typing import Any, Literal, cast

from pyengine.errors import ConfigError, DamageError, PyengineError
from pyengine.format import names
from pyengine.format.document import Fields, is_shallow, parse_document
from pyengine.format.evaluations import EVALUATIONS_MAX
from pyengine.format.levels import UNDECLARED, Level, read_level
from pyengine.format.metrics import metrics_to_json, read_metrics
from pyengine.format.migrations import SCHEMA_VERSION, migrate
from pyengine.format.sealed import check_seal, in_lines, seal

MANIFEST_MAX_BYTES = 64 * 1024 * 1024
"""Largest manifest that is read."""

NOTES_MAX_BYTES = 1024 * 1024
"""Largest notes, as JSON."""

_KNOWN_COUNT = 16
_KNOWN_MAX_BYTES = 256 * 1024
"""So many manifests of at most this size are parsed once: a commit looks at all that are there,
and at its own, several times."""

_FILES_MAX = 1_000_000
_COMPONENTS_MAX = 10_000
_NOTES_DEPTH_MAX = 16

Covers = Literal["all", "segment"]
Status = Literal["saved", "excluded"]


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a snapshot: its path below the snapshot (POSIX), size and XXH3-64 (16 hex).

    `covers` says what the checksum is taken over: "all" bytes, or "segment": header and block
    table, which in turn covers every other byte.
    """

    path: str
    size_bytes: int
    xxh3_64: str
    covers: Covers


@dataclass(frozen=True, slots=True)
class ComponentRecord:
    """One tracked object: whether it was saved, in which files, or why it was excluded.

    `type` is that of the live object, which it is restored into (None: not known); `harmless` that
    of an exclusion without which training goes on as before.
    """

    name: str
    kind: str
    status: Status
    reason: str | None = None
    files: tuple[str, ...] = ()
    bytes: int = 0
    type: str | None = None
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a snapshot says about itself.

    `line` is 16 hexadecimal digits, `created_at` ISO 8601 in UTC, `parent` the name of the
    snapshot before it in its history, `evaluations` the number of records in meta.json. `level`
    says how a run goes on from it, `runtime` what that may depend on besides versions (threads,
    devices, flags: plain values by name); a `milestone` is never pruned.
    """

    run_id: str
    generation: int
    sequence: int
    line: str
    global_step: int
    created_at: str
    parent: str | None = None
    algorithm: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    components: tuple[ComponentRecord, ...] = ()
    files: tuple[FileRecord, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    evaluations: int = 0
    notes: dict[str, Any] = field(default_factory=dict)
    level: Level = UNDECLARED
    runtime: dict[str, Any] = field(default_factory=dict)
    milestone: bool = False
    schema_version: int = SCHEMA_VERSION

    @property
    def name(self) -> str:
        """The directory name that belongs to it."""
        return names.snapshot_name(self.global_step, self.generation, self.sequence)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files of the snapshot, without the manifest."""
        return sum(record.size_bytes for record in self.files)

    def to_bytes(self) -> bytes:
        """Return the file. ConfigError: `from_bytes` would refuse it, so it is never written."""
        document = {"schema_version": self.schema_version, **_without_version(self)}
        try:
            data = seal(in_lines(document))
            Manifest.from_bytes(data, path=names.MANIFEST)
        except (DamageError, ValueError, TypeError) as error:
            raise ConfigError(f"the manifest could not be read back: {error}") from error
        return data

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str) -> Manifest:
        """Read the file; `path` is for messages.

        DamageError: the checksum differs, or a field is missing, too large, or a path leaves the
        snapshot. FormatVersionError: a newer version. Equal bytes may give the same object.
        """
        if len(data) <= min(_KNOWN_MAX_BYTES, MANIFEST_MAX_BYTES):
            try:
                return _known(bytes(data))
            except (PyengineError, ValueError):
                pass  # once more, with the path in the message
        return _parse(data, path)


@functools.lru_cache(_KNOWN_COUNT)
def _known(data: bytes) -> Manifest:
    return _parse(data, names.MANIFEST)


def _parse(data: bytes, path: str) -> Manifest:
    check_sum(data, path)
    document = parse_document(data, path, limit_bytes=MANIFEST_MAX_BYTES)
    return _from_document(migrate(document, path), path)


def check_sum(data: bytes, path: str) -> None:
    """Raise DamageError unless the file ends with the checksum of its bytes."""
    if len(data) > MANIFEST_MAX_BYTES:
        raise DamageError(
            f"{path}: {len(data)} bytes are more than the {MANIFEST_MAX_BYTES} it may have",
            path=path,
        )
    check_seal(data, path)


def _without_version(manifest: Manifest) -> dict[str, Any]:
    # Not dataclasses.asdict, which copies every value, deep: half of the time of a manifest.
    document = _values(manifest)
    del document["schema_version"]
    document["components"] = [_values(component) for component in manifest.components]
    document["files"] = [_values(record) for record in manifest.files]
    document["metrics"] = metrics_to_json(manifest.metrics)
    document["level"] = manifest.level.to_json()
    return document


def _values(record: Manifest | ComponentRecord | FileRecord) -> dict[str, Any]:
    return {item.name: getattr(record, item.name) for item in fields_of(record)}


def _from_document(document: dict[str, Any], path: str) -> Manifest:
    fields = Fields(document, path)
    files = tuple(_file(record) for record in fields.records("files", limit=_FILES_MAX))
    known = {record.path for record in files}
    if len(known) != len(files) or names.MANIFEST in known:
        fields.refuse("files", "paths that are given once, without the manifest", "repeated paths")
    components = tuple(
        _component(record, known) for record in fields.records("components", limit=_COMPONENTS_MAX)
    )
    if len({component.name for component in components}) != len(components):
        fields.refuse("components", "names that are given once", "repeated names")
    return Manifest(
        schema_version=fields.integer("schema_version"),
        run_id=fields.text("run_id", limit=100),
        generation=fields.integer("generation"),
        sequence=fields.integer("sequence"),
        line=fields.hexadecimal("line"),
        global_step=fields.integer("global_step"),
        created_at=fields.text("created_at", limit=64),
        parent=_parent(fields),
        algorithm=fields.optional_text("algorithm"),
        versions=_versions(fields),
        components=components,
        files=files,
        metrics=read_metrics(fields),
        evaluations=fields.integer("evaluations", high=EVALUATIONS_MAX),
        notes=fields.mapping("notes"),
        level=read_level(fields),
        runtime=_runtime(fields),
        milestone=fields.boolean("milestone"),
    )


def _file(fields: Fields) -> FileRecord:
    covers = fields.text("covers", limit=16)
    if covers not in ("all", "segment"):
        fields.refuse("covers", '"all" or "segment"', covers)
    return FileRecord(
        path=fields.relative_path("path"),
        size_bytes=fields.integer("size_bytes"),
        xxh3_64=fields.hexadecimal("xxh3_64"),
        covers=cast("Covers", covers),
    )


def _component(fields: Fields, known: set[str]) -> ComponentRecord:
    status = fields.text("status", limit=16)
    if status not in ("saved", "excluded"):
        fields.refuse("status", '"saved" or "excluded"', status)
    files = fields.array("files", limit=_FILES_MAX)
    for path in files:
        if not isinstance(path, str) or path not in known:
            fields.refuse("files", "paths that the manifest lists", path)
    return ComponentRecord(
        name=fields.text("name", limit=400),
        kind=fields.text("kind", limit=100),
        status=cast("Status", status),
        reason=fields.optional_text("reason"),
        files=tuple(files),
        bytes=fields.integer("bytes"),
        type=fields.optional_text("type"),
        harmless=fields.boolean("harmless"),
    )


def _parent(fields: Fields) -> str | None:
    parent = fields.optional_text("parent", limit=255)
    if parent is not None and names.parse_snapshot_name(parent) is None:
        fields.refuse("parent", "the name of a snapshot", parent)
    return parent


def _versions(fields: Fields) -> dict[str, str]:
    versions = fields.mapping("versions")
    for value in versions.values():
        if not isinstance(value, str):
            fields.refuse("versions", "strings", value)
    return versions


def _runtime(fields: Fields) -> dict[str, Any]:
    runtime = fields.mapping("runtime")
    for value in runtime.values():
        if not isinstance(value, (bool, int, float, str)):
            fields.refuse("runtime", "texts, numbers and truth values", value)
    return runtime


def utc_timestamp() -> str:
    """Return the time now as manifests write it: ISO 8601, UTC, milliseconds."""
    now = datetime.now(timezone.utc)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check_notes(notes: dict[str, Any]) -> None:
    """Raise ConfigError where notes could not be stored: not JSON, NaN, too deep, too large."""
    if not isinstance(notes, dict) or not is_shallow(notes, _NOTES_DEPTH_MAX):
        raise ConfigError(f"notes must be a dict of at most {_NOTES_DEPTH_MAX} levels")
    try:
        text = json.dumps(notes, allow_nan=False)
        json.dumps(notes, ensure_ascii=False).encode()  # as it is stored: no lone surrogates
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"notes must be plain JSON values: {error}") from error
    if len(text) > NOTES_MAX_BYTES:
        raise ConfigError(f"notes have {len(text)} bytes as JSON; {NOTES_MAX_BYTES} are allowed")
