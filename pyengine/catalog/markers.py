"""Restore markers: which snapshot killed the process that restored it, which one was restored.

`recovery/restoring.<name>` exists while a restore is applied. An exception removes it; one that is
still there tells of a death, and holds how many there were. `recovery/restored.<name>.marker` says
that the snapshot was restored, so that its files were read and verified.

Both are for what the death of a process leaves, so that no disk is waited for. After a power cut
either may be gone, empty or torn, and `restoring` may be there again until a later snapshot is
durable: no death is counted that no whole marker tells of, and one does not move a snapshot. Either
name alone proves that a snapshot was committed, as does the record of the line that grew from it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from pyengine.errors import RestoreError
from pyengine.format import names
from pyengine.format.document import Fields
from pyengine.format.manifest import utc_timestamp
from pyengine.format.sealed import parse_record, record_bytes
from pyengine.fs import door, durable
from pyengine.fs.beneath import read_beneath

_MARKER_MAX_BYTES = 4096

DEATHS_MAX = 2
"""After so many deaths in its restore, a snapshot is tried last."""


@contextlib.contextmanager
def applying(run_dir: str, generation: int, snapshot: str) -> Iterator[None]:
    """Mark the snapshot as being applied while the block runs.

    The mark is removed when the block ends, by an exception too: only a death leaves it.
    """
    directory = os.path.join(run_dir, names.RECOVERY)
    durable.make_directory(directory)
    name = names.restoring_marker_name(snapshot)
    attempts = _attempts(os.path.join(directory, name)) + 1
    _write(directory, name, generation, {"attempts": attempts, "generation": generation})
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            door.active.unlink(os.path.join(directory, name))


def mark_restored(run_dir: str, generation: int, snapshot: str) -> None:
    """Record that a restore of the snapshot succeeded."""
    directory = os.path.join(run_dir, names.RECOVERY)
    durable.make_directory(directory)
    record = {"generation": generation, "restored_at": utc_timestamp()}
    _write(directory, names.restored_marker_name(snapshot), generation, record)


def restore_deaths(run_dir: str) -> dict[str, int]:
    """Return, by snapshot name, in how many restores in a row the process died."""
    directory = os.path.join(run_dir, names.RECOVERY)
    deaths = {
        snapshot: _attempts(os.path.join(directory, names.restoring_marker_name(snapshot)))
        for kind, snapshot in _markers(directory)
        if kind == "restoring"
    }
    return {snapshot: count for snapshot, count in deaths.items() if count > 0}


def restored_snapshots(run_dir: str) -> set[str]:
    """Return the names of snapshots that were restored once: the marker's name alone says so."""
    directory = os.path.join(run_dir, names.RECOVERY)
    return {snapshot for kind, snapshot in _markers(directory) if kind == "restored"}


def marked_snapshots(run_dir: str) -> set[str]:
    """Return the names of snapshots that a restore was begun of, whatever became of it."""
    return {snapshot for _, snapshot in _markers(os.path.join(run_dir, names.RECOVERY))}


def _write(directory: str, name: str, generation: int, record: dict[str, object]) -> None:
    temporary = names.temporary_name(generation, name)
    durable.place_file(directory, name, record_bytes(record), temporary=temporary)


def _markers(directory: str) -> list[tuple[str, str]]:
    try:
        found = map(names.parse_marker_name, os.listdir(directory))
    except FileNotFoundError:
        return []
    return [marker for marker in found if marker is not None]


def _attempts(path: str) -> int:
    directory, name = os.path.split(path)
    try:
        # Not by open(): a FIFO in the marker's place would never let go of us.
        data = read_beneath(directory, name, limit_bytes=_MARKER_MAX_BYTES)
        return Fields(parse_record(data, path, limit_bytes=_MARKER_MAX_BYTES), path).integer(
            "attempts"
        )
    except (OSError, RestoreError):
        return 0
