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
from pyengine.errors import DamageError, PyengineError
from pyengine.format import names
from pyengine.format.manifest import MANIFEST_MAX_BYTES, Manifest
from pyengine.fs.beneath import read_beneath


@dataclass(frozen=True, slots=True)
class Scan:
    """The snapshots of a run, oldest to newest by (generation, sequence), and what is wrong."""

    snapshots: tuple[SnapshotInfo, ...]
    problems: tuple[Problem, ...]


def read_manifest(snapshot_path: str) -> Manifest:
    """Read and verify the manifest of a snapshot directory.

    Read twice before it is called damaged. Raises DamageError, FormatVersionError, and OSError as
    it is (FileNotFoundError: not a snapshot).
    """
    try:
        return _read_once(snapshot_path)
    except DamageError:
        return _read_once(snapshot_path)


def _read_once(snapshot_path: str) -> Manifest:
    data = read_beneath(snapshot_path, names.MANIFEST, limit_bytes=MANIFEST_MAX_BYTES)
    return Manifest.from_bytes(data, path=os.path.join(snapshot_path, names.MANIFEST))


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
    found = []
    for entry in _entries(os.path.join(run_dir, names.SNAPSHOTS)):
        name = names.parse_snapshot_name(entry.name)
        if name is not None and entry.is_dir(follow_symlinks=False) and has_manifest(entry.path):
            found.append(name)
    return sorted(found)


def has_manifest(snapshot_path: str) -> bool:
    """Return whether a directory has a manifest, good or bad."""
    return os.path.lexists(os.path.join(snapshot_path, names.MANIFEST))


def newest_restorable(run_dir: str) -> SnapshotInfo | None:
    """Return the newest committed snapshot; None: the run has none.

    A snapshot in whose restore the process died twice comes after all others. Raises DamageError,
    FormatVersionError or OSError where that snapshot's manifest cannot be used: an older one is
    never taken silently.
    """
    deaths = markers.restore_deaths(run_dir)
    candidates = [name.text for name in reversed(committed_names(run_dir))]
    candidates.sort(key=lambda name: deaths.get(name, 0) >= markers.DEATHS_MAX)
    return read_snapshot(run_dir, candidates[0]) if candidates else None


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


def highest_generation(run_dir: str) -> int:
    """Return the highest generation seen anywhere in the directory: claims, snapshots, lines'
    files excepted, temporaries, trash, quarantine and recovery; 0 where there is none."""
    highest = claimed_generation(run_dir)
    for directory in named_directories(run_dir):
        for entry in _entries(directory):
            name = names.parse_snapshot_name(entry.name)
            marker = names.parse_marker_name(entry.name)
            if name is None and marker is not None:
                name = names.parse_snapshot_name(marker[1])
            number = name.generation if name else names.parse_temporary_generation(entry.name)
            highest = max(highest, number or 0)
    return highest


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
