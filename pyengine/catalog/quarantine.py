"""Damaged snapshots: proven first, then moved into `quarantine/`, never deleted.

Damage is a mismatch that was read twice, the second time past the page cache. Whatever else keeps a
snapshot from being restored (permission, version, an I/O error, a lack of memory, a file that was
written so) proves nothing about its bytes and moves nothing.

Beside each directory in `quarantine/` lies `<name>.json`, which says what is wrong with it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyengine.catalog import scan, traces, verify
from pyengine.catalog.commit_lock import CommitLock, commit_lock
from pyengine.catalog.info import Problem, SnapshotInfo
from pyengine.errors import DamageError, FormatVersionError, RestoreError
from pyengine.format import names
from pyengine.format.document import Fields
from pyengine.format.manifest import FileRecord, utc_timestamp
from pyengine.format.sealed import parse_record
from pyengine.fs.beneath import read_beneath
from pyengine.fs.locks import OfdLock

_RECORD_MAX_BYTES = 1024 * 1024

FileIdentity = tuple[int, int]
"""Device and inode: hard links of one file have the same."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Proven damage of one snapshot: in which file (path below it), and what is wrong with it."""

    snapshot: str
    file: str
    problem: Problem

    def to_record(self) -> dict[str, Any]:
        """Return what the record in `quarantine/` says, without the snapshot's name."""
        told = self.problem.to_dict()
        return {
            "file": self.file,
            **{key: told[key] for key in ("kind", "offset", "expected", "got", "text")},
            "found_at": utc_timestamp(),
        }


def suspects(
    info: SnapshotInfo, error: DamageError | FormatVersionError | FileNotFoundError
) -> list[FileRecord]:
    """Return the files of a snapshot that an error may speak of; none: it is about something else.

    Where the file system has no links, rows are read from copies in the pool: the original of such
    a copy is one of the segment files.
    """
    path = error.filename if isinstance(error, FileNotFoundError) else error.path
    if not isinstance(path, str):
        return []
    record = info.file(os.path.relpath(path, info.path))
    if record is not None:
        return [record]
    run_dir = os.path.dirname(os.path.dirname(info.path))
    is_pooled = path.startswith(os.path.join(run_dir, names.SEGMENTS, ""))
    return [file for file in info.files if is_pooled and file.covers == "segment"]


def prove(info: SnapshotInfo, files: Iterable[FileRecord]) -> Damage | None:
    """Verify files of a snapshot once more, every byte of them; return the first damage.

    None: nothing is wrong with them. Raises FormatVersionError and OSError where one cannot be
    read, which is no damage.
    """
    for record in files:
        try:
            verify.check_file(info, record)
        except (DamageError, FileNotFoundError) as found:
            path = os.path.join(info.path, record.path)
            return Damage(info.name, record.path, Problem.of(found, path))
    return None


def in_manifest(name: str, error: DamageError) -> Damage:
    """Return the damage that reading a snapshot's manifest, twice, has proven."""
    return Damage(name, names.MANIFEST, Problem.of(error, error.path))


def move(run_dir: str, generation: int, damage: Damage) -> str | None:
    """Move a damaged snapshot into `quarantine/`; durable on return. Returns its new path.

    None, with nothing touched: a reader has it locked, and relies on its names as it does against
    pruning. Waits for the commit lock (RunBusyError). Raises StaleGenerationError, with nothing
    touched, where `generation` is no longer the newest claim; NoSpaceError, OSError.
    """
    with commit_lock(run_dir, generation) as held:
        manifest = os.path.join(run_dir, names.SNAPSHOTS, damage.snapshot, names.MANIFEST)
        with contextlib.ExitStack() as stack:
            # What cannot be opened nobody can have locked.
            with contextlib.suppress(OSError):
                lock = OfdLock.try_acquire(manifest)
                if lock is None:
                    return None
                stack.enter_context(lock)
            return held.quarantine(damage.snapshot, damage.to_record())


def move_unfinished(held: CommitLock, name: str, proof: str) -> str:
    """Move a snapshot that was committed, as `proof` says, and has no manifest any more; as `move`
    does."""
    path = os.path.join(held.run_dir, names.SNAPSHOTS, name, names.MANIFEST)
    text = f"{path} is missing, and the snapshot was committed: {proof}"
    problem = Problem(path, "missing", text)
    return held.quarantine(name, Damage(name, names.MANIFEST, problem).to_record())


def snapshot_names(run_dir: str) -> list[str]:
    """Return the names of the directories in `quarantine/`, sorted."""
    try:
        with os.scandir(os.path.join(run_dir, names.QUARANTINE)) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and names.parse_quarantine_name(entry.name)
            )
    except FileNotFoundError:
        return []


def order_of(name: str) -> names.SnapshotName:
    """Return what tells which of two snapshots is newer, from the name of one or of its directory
    in quarantine."""
    parsed = names.parse_quarantine_name(name)
    assert parsed is not None, name
    return parsed


def lost_snapshots(run_dir: str, first: int = 0) -> list[tuple[str, str]]:
    """Return (path, reason) of snapshots that were committed and are not in their place: all that
    are known of the generations from `first` on.

    They are in quarantine, or something proves that there was one (catalog.traces) that is gone.
    What makes a run without snapshots one that must not begin anew by itself.
    """
    moved = snapshot_names(run_dir)
    directory, place = (os.path.join(run_dir, n) for n in (names.QUARANTINE, names.SNAPSHOTS))
    lost = [
        (os.path.join(directory, name), f"in quarantine: {_reason(directory, name)}")
        for name in moved
    ]
    there = {name.text for name in scan.committed_names(run_dir)} | _former_names(moved)
    for name, proof in sorted(traces.known_committed(run_dir, first).items()):
        if name not in there:
            lost.append((os.path.join(place, name), f"gone, or without its manifest, and {proof}"))
    return lost


def _former_names(moved: Iterable[str]) -> set[str]:
    """Return what directories in quarantine were called before: there a name may have a number."""
    parsed = map(names.parse_quarantine_name, moved)
    return {name.text for name in parsed if name is not None}


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file of a snapshot in quarantine that is not what that one's manifest says: its path, and
    the checksum that it was to have; None where that manifest cannot be read."""

    path: str
    xxh3_64: str | None


def damaged_files(run_dir: str) -> dict[FileIdentity, DamagedFile]:
    """Return the files that damaged snapshots in quarantine hold, by identity.

    Snapshots share them by hard links: another one that holds the same file is damaged too.
    """
    directory = os.path.join(run_dir, names.QUARANTINE)
    found = {}
    for name in snapshot_names(run_dir):
        record = _read_record(directory, name)
        if record is not None and record.get("kind") != "missing":
            path = os.path.join(directory, name, str(record.get("file")))
            identity = _identity(path)
            if identity is not None:
                found[identity] = DamagedFile(path, _expected(directory, name, record["file"]))
    return found


def _expected(directory: str, name: str, file: str) -> str | None:
    try:
        manifest = scan.read_manifest(os.path.join(directory, name))
    except (RestoreError, OSError):
        return None
    return next((one.xxh3_64 for one in manifest.files if one.path == file), None)


def shared_file(
    info: SnapshotInfo, damaged: dict[FileIdentity, DamagedFile]
) -> tuple[str, str] | None:
    """Return (path below the snapshot, path of the damaged file) where it holds one of them.

    A whole file that lay in a wrong place is not what the damaged snapshot expected there, and may
    well be what this one expects.
    """
    for record in info.files if damaged else ():
        identity = _identity(os.path.join(info.path, record.path))
        other = damaged.get(identity) if identity is not None else None
        if other is not None and other.xxh3_64 in (None, record.xxh3_64):
            return record.path, other.path
    return None


def _identity(path: str) -> FileIdentity | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None  # whoever reads it will say what is wrong
    return (status.st_dev, status.st_ino)


def _reason(directory: str, name: str) -> str:
    record = _read_record(directory, name)
    return str(record.get("text")) if record else "its record cannot be read"


def _read_record(directory: str, name: str) -> dict[str, Any] | None:
    """Return the record of a directory in quarantine; None where it is missing or no record."""
    file = names.quarantine_record_name(name)
    try:
        data = read_beneath(directory, file, limit_bytes=_RECORD_MAX_BYTES)
        path = os.path.join(directory, file)
        record = parse_record(data, path, limit_bytes=_RECORD_MAX_BYTES)
        Fields(record, path).relative_path("file")
    except (OSError, RestoreError):
        return None
    return record
