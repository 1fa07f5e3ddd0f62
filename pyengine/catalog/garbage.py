"""Garbage: what dead runs left in a run directory, found and removed by hand.

    trash        renamed out of the way by somebody who died before deleting it
    temporary    a file or directory that its generation did not finish
    unfinished   a snapshot's directory without a manifest: it was never committed
    pool         a file of the pool that no snapshot holds and no restore could use any more
    marker       a restore marker of a snapshot that is gone
    quarantine   a snapshot that was found damaged; only where it is asked for

Everything happens under the commit lock of a run without owner and writer (catalog.idle), so that
every generation is dead and no new one begins. A claim clears the first three by itself; the pool
is cleared by the first commit of a new line. This is for runs that nobody starts again, and for
disks that are full before anybody can.

Rows that were added after the newest snapshot lie in the pool under its line, or under a line that
grew from it: those are what a dead trainer left to be taken up, and no garbage.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pyengine.catalog import janitor, quarantine, scan, traces
from pyengine.catalog.commit import empty_trash
from pyengine.catalog.commit_lock import CommitLock
from pyengine.catalog.idle import idle_lock
from pyengine.catalog.lineage import Lineage
from pyengine.catalog.lines import read_lines
from pyengine.catalog.pool import lines_in_pool
from pyengine.format import names
from pyengine.fs import durable

Kind = Literal["trash", "temporary", "unfinished", "pool", "marker", "quarantine"]

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """One name that may go. `freed_bytes` leaves out files that another name keeps alive."""

    path: str
    kind: Kind
    size_bytes: int
    freed_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Collection:
    """What was found, and removed where that was asked for; `notes` says what was not judged, and
    `stayed` names trash that could not be deleted."""

    items: tuple[Garbage, ...]
    notes: tuple[str, ...]
    is_removed: bool
    stayed: tuple[str, ...] = ()

    @property
    def freed_bytes(self) -> int:
        """How much space the removal gives back."""
        return sum(item.freed_bytes for item in self.items)


def collect_garbage(
    run_dir: str,
    *,
    delete: bool = False,
    with_quarantine: bool = False,
    progress: Progress | None = None,
) -> Collection:
    """List what dead generations left in the run at `run_dir`; with `delete` remove it.

    With `with_quarantine`, what lies in `quarantine/` too, where another snapshot is there. Names
    are gone, durably, on return. Blocks up to a minute for the commit lock, then as long as
    deleting takes. Raises RunBusyError (the run is alive: nothing was touched), RunDirectoryError,
    NoSpaceError, OSError.
    """
    path = os.path.realpath(run_dir)
    with idle_lock(path) as held:
        notes: list[str] = []
        found = [*_left_behind(path), *_orphans(path, notes), *_stale_markers(path)]
        if with_quarantine:
            found += _quarantined(path, notes)
        items = _weigh(found)
        trash = _move_away(held, items) if delete else []
    _delete(trash, progress)
    stayed = tuple(path for path, _ in trash if os.path.lexists(path))
    return Collection(tuple(items), tuple(notes), delete, stayed)


def _left_behind(run_dir: str) -> Iterator[tuple[str, Kind]]:
    """Yield trash, temporaries and unfinished snapshots; every generation is dead.

    What was committed and has lost its manifest is none of them: the next claim moves it to
    quarantine.
    """
    committed = traces.without_manifest(run_dir)
    for directory in scan.named_directories(run_dir):
        for left in janitor.leftovers(directory):
            if left.kind != "unfinished" or os.path.basename(left.path) not in committed:
                yield left.path, left.kind


def _orphans(run_dir: str, notes: list[str]) -> Iterator[tuple[str, Kind]]:
    usable = _usable_lines(run_dir, notes)
    if usable is None:
        return
    held = _held_inodes(run_dir)
    root = os.path.join(run_dir, names.SEGMENTS)
    for ring in _listed(root):
        for name in _listed(os.path.join(root, ring)):
            parsed = names.parse_pool_name(name) or names.parse_part_name(name)
            path = os.path.join(root, ring, name)
            if parsed is not None and names.line_text(parsed.line) not in usable:
                status = os.lstat(path)
                if (status.st_dev, status.st_ino) not in held:
                    yield path, "pool"


def _usable_lines(run_dir: str, notes: list[str]) -> set[str] | None:
    """Return the lines whose pool files a restore of any snapshot could still take rows from.

    None where that cannot be known: a manifest that cannot be read may be of any line.
    """
    found = scan.scan_snapshots(run_dir)
    if found.problems:
        notes.append(
            f"files of the pool are left alone: {found.problems[0].path} cannot be read, and its "
            "line may need them"
        )
        return None
    lines = read_lines(run_dir)
    usable = {info.line for info in found.snapshots}
    for info in found.snapshots:
        usable |= Lineage(run_dir, info).grown_lines()
    unknown = lines_in_pool(run_dir) - usable - set(lines)
    if unknown:
        notes.append(
            f"files of the pool are left alone of {len(unknown)} lines that have no record which "
            "can be read: rows after a snapshot may be in them"
        )
    usable |= unknown
    newest = max(lines.values(), key=lambda line: line.order, default=None)
    if newest is not None:
        usable.add(newest.text)
    return usable


def _held_inodes(run_dir: str) -> set[tuple[int, int]]:
    """Return the files that committed snapshots hold."""
    held = set()
    for name in scan.committed_names(run_dir):
        for status in _files(os.path.join(run_dir, names.SNAPSHOTS, name.text, names.BUFFER)):
            held.add((status.st_dev, status.st_ino))
    return held


def _stale_markers(run_dir: str) -> Iterator[tuple[str, Kind]]:
    """Yield markers of snapshots that are gone; one without its manifest is not, nor is one in
    quarantine: the marker proves that it was committed."""
    recovery = os.path.join(run_dir, names.RECOVERY)
    parsed = map(names.parse_quarantine_name, quarantine.snapshot_names(run_dir))
    present = {name.text for name in parsed if name is not None}
    present.update(_listed(os.path.join(run_dir, names.SNAPSHOTS)))
    for entry in _listed(recovery):
        marker = names.parse_marker_name(entry)
        if marker is not None and marker[1] not in present:
            yield os.path.join(recovery, entry), "marker"


def _quarantined(run_dir: str, notes: list[str]) -> Iterator[tuple[str, Kind]]:
    """Yield what lies in quarantine, unless that alone keeps the run from beginning anew."""
    directory = os.path.join(run_dir, names.QUARANTINE)
    if not scan.committed_names(run_dir):
        notes.append(
            f"{directory} is left alone: the run has no other snapshot, and without these it would "
            "begin anew. Remove the whole run where that is meant"
        )
        return
    for entry in _listed(directory):
        if not names.is_trash(entry) and not names.is_temporary(entry):
            yield os.path.join(directory, entry), "quarantine"


def _weigh(found: Sequence[tuple[str, Kind]]) -> list[Garbage]:
    """Size everything up; a file is freed by the last of its names that goes."""
    left: dict[tuple[int, int], int] = {}
    items = []
    for path, kind in found:
        size_bytes = freed_bytes = 0
        for status in _files(path):
            key = (status.st_dev, status.st_ino)
            left[key] = left.get(key, status.st_nlink) - 1
            size_bytes += status.st_size
            freed_bytes += status.st_size if left[key] == 0 else 0
        items.append(Garbage(path, kind, size_bytes, freed_bytes))
    return items


def _move_away(held: CommitLock, items: Sequence[Garbage]) -> list[tuple[str, int]]:
    """Take every name away, durably; return what is to be deleted, with its size.

    Pool files and markers are unlinked at once, all else becomes trash first: a directory that is
    deleted half-way must not look like anything.
    """
    trash = []
    for item in items:
        if item.kind == "trash":
            trash.append((item.path, item.size_bytes))
        elif item.kind in ("pool", "marker"):
            held.unlink(item.path)
        else:
            trash.append((held.trash(item.path), item.size_bytes))
    for directory in sorted({os.path.dirname(item.path) for item in items}):
        durable.fsync_directory(directory)
    return trash


def _delete(trash: Sequence[tuple[str, int]], progress: Progress | None) -> None:
    total_bytes = sum(size_bytes for _, size_bytes in trash)
    done_bytes = 0
    for path, size_bytes in trash:
        empty_trash([path])
        done_bytes += size_bytes
        if progress is not None:
            progress(done_bytes, total_bytes)


def _files(path: str) -> Iterator[os.stat_result]:
    """Yield the status of every file at or below a path; symbolic links are not followed."""
    paths = [path]
    if os.path.isdir(path) and not os.path.islink(path):
        paths = [os.path.join(base, entry) for base, _, files in os.walk(path) for entry in files]
    for file in paths:
        with contextlib.suppress(FileNotFoundError):  # trash that somebody else is deleting
            yield os.lstat(file)


def _listed(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
