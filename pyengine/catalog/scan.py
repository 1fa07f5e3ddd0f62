"""Which snapshots a run directory holds. Reads only, claims nothing, trusts no name or time.

A directory is a snapshot when its manifest verifies and names that directory. One without a
manifest was never committed. One whose manifest is damaged, or unreadable, is a problem.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from pyengine.catalog import markers
from pyengine.catalog.info import Problem, SnapshotInfo
from pyengine.errors import DamageError, MalformedFileError, PyengineError
from pyengine.events import logger
from pyengine.format import names
from pyengine.format.manifest import MANIFEST_MAX_BYTES, Manifest, check_sum
from pyengine.fs.beneath import read_beneath


@dataclass(frozen=True, slots=True)
class Scan:
    """The snapshots of a run, oldest to newest by (generation, sequence), and what is wrong."""

    snapshots: tuple[SnapshotInfo, ...]
    problems: tuple[Problem, ...]


def read_manifest(snapshot_path: str) -> Manifest:
    """Read and verify the manifest of a snapshot directory.

    Read twice, the second time past the page cache, before it is called damaged. Raises
    DamageError, MalformedFileError (its checksum holds, and it makes no sense),
    FormatVersionError, and OSError as it is (FileNotFoundError: not a snapshot).
    """
    try:
        return _read_once(snapshot_path)
    except DamageError:
        return _read_once(snapshot_path, past_cache=True)


def _read_once(snapshot_path: str, *, past_cache: bool = False) -> Manifest:
    path = os.path.join(snapshot_path, names.MANIFEST)
    data = read_beneath(
        snapshot_path, names.MANIFEST, limit_bytes=MANIFEST_MAX_BYTES, past_cache=past_cache
    )
    check_sum(data, path)
    try:
        return Manifest.from_bytes(data, path=path)
    except DamageError as error:
        raise MalformedFileError(
            f"{error}; its checksum holds, so it was written so", path=path, offset=error.offset
        ) from error


def read_snapshot(run_dir: str, name: str) -> SnapshotInfo:
    """Read one snapshot of a run by name. Raises as `read_manifest` does."""
    path = os.path.join(run_dir, names.SNAPSHOTS, name)
    manifest = read_manifest(path)
    if manifest.name != name:
        raise DamageError(
            f"{path}: its manifest is that of {manifest.name}; a snapshot keeps its name",
            path=path,
            expected=manifest.name,
            got=name,
        )
    return SnapshotInfo.of(path, manifest)


def scan_snapshots(run_dir: str) -> Scan:
    """Read the manifests of all committed snapshots. Never raises for a single bad one."""
    snapshots = []
    problems = []
    for name in committed_names(run_dir):
        try:
            snapshots.append(read_snapshot(run_dir, name.text))
        except FileNotFoundError:
            continue  # pruned while we looked
        except (PyengineError, OSError) as error:
            path = os.path.join(run_dir, names.SNAPSHOTS, name.text, names.MANIFEST)
            problems.append(Problem.of(error, path))
    return Scan(tuple(snapshots), tuple(problems))


def committed_names(run_dir: str) -> list[names.SnapshotName]:
    """Return the names of directories that have a manifest, good or bad, oldest first."""
    directory = os.path.join(run_dir, names.SNAPSHOTS)
    return [
        name
        for name in snapshot_directories(run_dir)
        if has_manifest(os.path.join(directory, name.text))
    ]


def snapshot_directories(run_dir: str) -> list[names.SnapshotName]:
    """Return the names of directories that bear a snapshot's name, committed or not, oldest
    first."""
    found = []
    for entry in _entries(os.path.join(run_dir, names.SNAPSHOTS)):
        name = names.parse_snapshot_name(entry.name)
        if name is not None and entry.is_dir(follow_symlinks=False):
            found.append(name)
    return sorted(found)


def has_manifest(snapshot_path: str) -> bool:
    """Return whether a directory has a manifest, good or bad."""
    return os.path.lexists(os.path.join(snapshot_path, names.MANIFEST))


def newest_restorable(run_dir: str) -> SnapshotInfo | None:
    """Return the newest committed snapshot to go on from, else the newest of weights alone; None:
    the run has none.

    A snapshot in whose restore the process died twice comes after all others, which is logged as an
    error. Raises DamageError,
    FormatVersionError or OSError where that snapshot's manifest cannot be used: an older one is
    never taken silently.
    """
    candidates = restorable_names(run_dir)
    for text in told_of_deaths(run_dir, candidates):
        logger.error("%s: %s", run_dir, text)
    weights = None
    for name in candidates:
        info = read_snapshot(run_dir, name)
        if not info.is_weights_only:
            return info
        weights = weights or info
    return weights


def restorable_names(run_dir: str) -> list[str]:
    """Return the names of committed snapshots, good or bad, in the order in which to try them.

    Newest first; one in whose restore the process died twice comes after all others.
    """
    deaths = markers.restore_deaths(run_dir)
    candidates = [name.text for name in reversed(committed_names(run_dir))]
    candidates.sort(key=lambda name: deaths.get(name, 0) >= markers.DEATHS_MAX)
    return candidates


def told_of_deaths(run_dir: str, candidates: list[str]) -> list[str]:
    """Return one line for each snapshot that is newer than the first of `candidates` (as
    `restorable_names` gives them) and comes after it, because restores of it have died."""
    if not candidates:
        return []
    deaths = markers.restore_deaths(run_dir)
    newer = [name for name in candidates if _order(name) > _order(candidates[0])]
    return [
        f"{name} is newer than {candidates[0]} and is tried last: the process died in its restore "
        f"{deaths.get(name, 0)} times. To have it tried first, remove "
        f"{names.RECOVERY}/{names.restoring_marker_name(name)}"
        for name in newer
    ]


def _order(name: str) -> names.SnapshotName:
    parsed = names.parse_snapshot_name(name)
    assert parsed is not None
    return parsed


def latest_target(run_dir: str) -> str | None:
    """Return the snapshot name that the link `latest` holds, whether it is there or not.

    The link is set once a snapshot is committed: it proves that one of this name was. None where
    there is no link, or one to something else.
    """
    try:
        name = os.path.basename(os.readlink(os.path.join(run_dir, names.LATEST)))
    except OSError:
        return None
    return name if names.parse_snapshot_name(name) else None


def claimed_generation(run_dir: str) -> int:
    """Return the highest generation that was claimed; 0 where there is none."""
    return max(claimed_generations(run_dir), default=0)


def claimed_generations(run_dir: str) -> list[int]:
    """Return all generations that were claimed, in no order."""
    claimed = [
        names.parse_generation_name(entry.name)
        for entry in _entries(os.path.join(run_dir, names.GENERATIONS))
    ]
    return [number for number in claimed if number is not None]


def named_generations(run_dir: str) -> Iterator[int]:
    """Yield each generation that a name in the directory tells of: claims and their logs,
    snapshots, `latest`, temporaries, trash, quarantine and recovery."""
    yield claimed_generation(run_dir)
    latest = names.parse_snapshot_name(latest_target(run_dir) or "")
    if latest is not None:
        yield latest.generation
    for directory in named_directories(run_dir):
        for entry in _entries(directory):
            yield _generation_in(entry.name) or 0


def _generation_in(text: str) -> int | None:
    marker = names.parse_marker_name(text)
    name = names.parse_quarantine_name(text if marker is None else marker[1])
    if name is not None:
        return name.generation
    return names.parse_temporary_generation(text) or names.parse_generation_log_name(text)


def named_directories(run_dir: str) -> list[str]:
    """Return every directory of a run in which temporaries may lie."""
    fixed = (
        names.GENERATIONS,
        names.LINES,
        names.SNAPSHOTS,
        names.QUARANTINE,
        names.RECOVERY,
        names.SEGMENTS,
    )
    found = [run_dir, *(os.path.join(run_dir, name) for name in fixed)]
    pools = _entries(os.path.join(run_dir, names.SEGMENTS))
    return found + [entry.path for entry in pools if entry.is_dir(follow_symlinks=False)]


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        return
