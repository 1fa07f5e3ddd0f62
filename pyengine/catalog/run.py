"""Looking at a run without touching it: no claim, no lock that excludes, no write."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyengine.catalog import scan
from pyengine.catalog.info import Problem, SnapshotInfo
from pyengine.catalog.run_record import read_run_id
from pyengine.errors import RunDirectoryError
from pyengine.format import names

LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Run:
    """What a run directory holds, or a single snapshot that was copied out of one.

    `snapshots` are committed ones whose manifests verify, oldest to newest by (generation,
    sequence); their files were not read. `problems` names what looks like a snapshot and cannot
    be used.
    """

    path: str
    run_id: str
    snapshots: tuple[SnapshotInfo, ...]
    problems: tuple[Problem, ...]

    @property
    def latest(self) -> SnapshotInfo | None:
        """The newest usable snapshot, or None. Found by order, not by the link `latest`."""
        return self.snapshots[-1] if self.snapshots else None


def open_run(path: str | os.PathLike[str]) -> Run:
    """Look at the run, or the single snapshot, at `path`. Reads manifests only.

    Safe while a trainer writes to the run: a snapshot is seen whole or not at all. Raises
    RunDirectoryError where `path` is neither; for a single snapshot DamageError and
    FormatVersionError too; OSError.
    """
    run_dir = os.path.realpath(path)
    if scan.has_manifest(run_dir):
        info = SnapshotInfo.of(run_dir, scan.read_manifest(run_dir))
        return Run(run_dir, info.run_id, (info,), ())
    _check_run(run_dir)
    found = scan.scan_snapshots(run_dir)
    return Run(run_dir, _run_id(run_dir, found), found.snapshots, found.problems)


def _check_run(run_dir: str) -> None:
    if not os.path.isdir(os.path.join(run_dir, names.SNAPSHOTS)):
        what = "is neither a run directory nor a snapshot"
        raise RunDirectoryError(
            f"{run_dir} {what if os.path.exists(run_dir) else 'does not exist'}", path=run_dir
        )


def _run_id(run_dir: str, found: scan.Scan) -> str:
    """Return the run's id; where snapshots were copied in without run.json, the newest one's."""
    if not os.path.lexists(os.path.join(run_dir, names.RUN_JSON)) and found.snapshots:
        return found.snapshots[-1].run_id
    return read_run_id(run_dir)


def split_named(text: str) -> tuple[str, int | None] | None:
    """Return run and step of `RUN@STEP`, the step None for `RUN@latest`; None: it is neither."""
    run, _, wanted = text.rpartition("@")
    if not run or not (wanted == LATEST or wanted.isdecimal()):
        return None
    return run, None if wanted == LATEST else int(wanted)


def choose_snapshot(path: str | os.PathLike[str]) -> SnapshotInfo:
    """Return the snapshot to read at `path`: itself, or the newest of a run.

    Raises RunDirectoryError (neither, or a run without snapshots), and as `newest_restorable`
    does: a damaged newest snapshot is an error, never skipped silently.
    """
    run_dir = os.path.realpath(path)
    if scan.has_manifest(run_dir):
        return SnapshotInfo.of(run_dir, scan.read_manifest(run_dir))
    _check_run(run_dir)
    info = scan.newest_restorable(run_dir)
    if info is None:
        raise RunDirectoryError(f"{run_dir} holds no snapshot", path=run_dir)
    return info
