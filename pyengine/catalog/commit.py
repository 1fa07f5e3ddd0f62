"""The commit: how a snapshot becomes visible, in one function and one order.

Nothing else publishes. Before: the snapshot's own files and links lie in a temporary directory,
every file and directory fsynced. Then `publish_snapshot`: lock and generation check, the swap to
COMMITTING, rename of the directory, manifest last, `latest`, prune. A death at any point leaves
either a directory without a manifest, which is no snapshot, or a complete one. Which of both it
was, the manifest's temporary tells afterwards: it is there, empty, from the making of the directory
until it becomes the manifest, so that a directory with neither has lost its manifest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping

from pyengine.catalog import markers, pool, retention, scan
from pyengine.catalog.commit_lock import CommitLock, commit_lock
from pyengine.catalog.generation import check_not_replaced
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.lines import read_lines
from pyengine.errors import DamageError, NoSpaceError, PyengineError, SnapshotFailedError
from pyengine.events import logger
from pyengine.format import names
from pyengine.format.manifest import Manifest
from pyengine.fs import durable
from pyengine.fs.locks import OfdLock


def publish_snapshot(
    run_dir: str,
    staged_dir: str,
    manifest: Manifest,
    *,
    begin: Callable[[], bool],
    keep_last: int,
    keep_best: str | None = None,
    keep_best_mode: str = "max",
    visible: Callable[[SnapshotInfo], None] | None = None,
    lines_in_use: Mapping[str, Collection[int]] | None = None,
    lock: OfdLock | None = None,
) -> SnapshotInfo | None:
    """Commit the snapshot that lies, durable but for its manifest, in `staged_dir`.

    `staged_dir` is a temporary directory in `snapshots/`. `begin` makes the swap to COMMITTING once
    the lock is held and the generation is ours; where it returns False nothing was committed, None
    is returned and the staged directory is gone. `visible` is called as soon as the snapshot is
    durable, before pruning, which keeps what `keep_last` and `keep_best` say (see retention).
    Pruning and `latest` only warn. Pool files of other lines go, but for `lines_in_use` by ring.

    `lock` is the commit lock where it was taken already (`try_lock`), and is released; else it is
    waited for, within a bound: RunBusyError.

    Returns at once with the snapshot where a manifest of it is already there (a writer that died
    after committing). Raises StaleGenerationError (nothing was touched), SnapshotFailedError (a
    listed file is missing), ConfigError (a manifest that could not be read back), NoSpaceError,
    OSError; after an error past `begin` nothing of the snapshot is left under its name, and it can
    be staged anew.
    """
    _check_staged(staged_dir, manifest)
    data = manifest.to_bytes()
    trash: list[str] = []
    with commit_lock(run_dir, manifest.generation, taken=lock) as held:
        if not begin():
            trash.append(held.trash(staged_dir))
            info = None
        else:
            info = _make_visible(held, staged_dir, manifest, data, trash)
            if visible is not None:
                visible(info)
            _point_latest(held, manifest)
            rules = (keep_last, keep_best, keep_best_mode)
            trash += _prune_or_warn(held, rules, manifest.line, lines_in_use)
    empty_trash(trash)
    return info


def _check_staged(staged_dir: str, manifest: Manifest) -> None:
    """A manifest must never list a file that is not there in full size."""
    for record in manifest.files:
        path = os.path.join(staged_dir, record.path)
        try:
            size_bytes = os.lstat(path).st_size
        except FileNotFoundError:
            size_bytes = -1
        if size_bytes != record.size_bytes:
            raise SnapshotFailedError(
                f"{path}: the manifest lists {record.size_bytes} bytes, {size_bytes} are there",
                sequence=manifest.sequence,
            )


def _make_visible(
    held: CommitLock, staged_dir: str, manifest: Manifest, data: bytes, trash: list[str]
) -> SnapshotInfo:
    snapshots = os.path.join(held.run_dir, names.SNAPSHOTS)
    final = os.path.join(snapshots, manifest.name)
    done = None
    # One that cannot be read or made durable goes to trash, and this one takes its name.
    with contextlib.suppress(OSError, NoSpaceError):
        done = find_committed(held.run_dir, manifest.name)
    if done is not None:
        trash.append(held.trash(staged_dir))
        return done
    if os.path.lexists(final):  # of a writer that died between the two renames
        trash.append(held.trash(final))
    try:
        held.rename(staged_dir, final)
        durable.fsync_directory(snapshots)
        durable.fill_file(final, names.MANIFEST, data, temporary=names.MANIFEST_TMP)
    except BaseException as error:
        # Whatever became of it, it is not durable: out of the way, so that it can be staged anew.
        for path in (final, staged_dir):
            with contextlib.suppress(OSError, NoSpaceError):
                trash.append(held.trash(path))
        _disown(held, final, manifest, error)
        raise
    return SnapshotInfo.of(final, manifest)


def _disown(held: CommitLock, final: str, manifest: Manifest, error: BaseException) -> None:
    """Leave no manifest that was not made durable under the snapshot's name: it would count.

    Where it can be neither moved nor removed, nobody may try again over it: SnapshotFailedError.
    """
    path = os.path.join(final, names.MANIFEST)
    try:
        held.unlink(path)
    except OSError as stays:
        raise SnapshotFailedError(
            f"{path} may not be durable ({error}) and cannot be removed ({stays}): the snapshot "
            "does not count, although it can be seen",
            sequence=manifest.sequence,
        ) from error


def find_committed(run_dir: str, name: str) -> SnapshotInfo | None:
    """Return the snapshot of this name where it is committed and its manifest verifies, else None.

    What a new writer asks about a snapshot that its predecessor was committing. Durable on return:
    the predecessor may have died between the manifest's rename and the fsync of its directory.
    Raises NoSpaceError or OSError where that fsync fails.
    """
    try:
        info = scan.read_snapshot(run_dir, name)
    except (FileNotFoundError, DamageError):
        return None
    durable.fsync_directory(info.path)
    return info


def _point_latest(held: CommitLock, manifest: Manifest) -> None:
    """`latest` is a convenience: it never moves back, and a failure is only worth a warning."""
    current = names.parse_snapshot_name(scan.latest_target(held.run_dir) or "")
    order = (manifest.generation, manifest.sequence)
    if current is not None and (current.generation, current.sequence) > order:
        return
    try:
        held.replace_latest(manifest.name)
    except (OSError, NoSpaceError) as error:
        _warn_of_latest(held.run_dir, error)


def mend_latest(run_dir: str, generation: int, restored: str) -> None:
    """Point `latest` at the snapshot that was restored, where it leads to none that is committed.

    A failure is only worth a warning. Where nothing can be restored the link stays as it is: it
    proves that there was a snapshot. Waits for the commit lock, within its bound.
    """
    try:
        if not _leads_nowhere(run_dir):
            return
        with commit_lock(run_dir, generation) as held:
            if _leads_nowhere(run_dir):
                held.replace_latest(restored)
    except (OSError, PyengineError) as error:
        _warn_of_latest(run_dir, error)


def _leads_nowhere(run_dir: str) -> bool:
    target = scan.latest_target(run_dir)
    path = os.path.join(run_dir, names.SNAPSHOTS, target or "")
    return target is not None and not scan.has_manifest(path)


def _warn_of_latest(run_dir: str, error: Exception) -> None:
    logger.warning("%s: the link `latest` could not be replaced: %s", run_dir, error)


def _prune_or_warn(
    held: CommitLock,
    rules: tuple[int, str | None, str],
    line: str,
    lines_in_use: Mapping[str, Collection[int]] | None,
) -> list[str]:
    try:
        pool.remove_other_lines(held, line, lines_in_use)
        trash = prune(held, *rules)
        _forget_lines(held, line)
        return trash
    except (OSError, PyengineError) as error:
        logger.warning("%s: pruning failed and is left to the next commit: %s", held.run_dir, error)
        return []


def prune(
    held: CommitLock, keep_last: int, keep_best: str | None = None, keep_best_mode: str = "max"
) -> list[str]:
    """Move the snapshots that may go (see retention) to trash; return the paths to delete.

    The caller gives them to `empty_trash` once the lock is released. One that a reader has locked
    stays. The moves are durable on return.
    """
    found = scan.scan_snapshots(held.run_dir)
    doomed = retention.plan(
        found.snapshots,
        keep_last=keep_last,
        keep_best=keep_best,
        keep_best_mode=keep_best_mode,
        lines=read_lines(held.run_dir),
        verified=markers.restored_snapshots(held.run_dir),
    )
    snapshots = os.path.join(held.run_dir, names.SNAPSHOTS)
    trash = []
    for name in doomed:
        # A reader's shared lock excludes ours; holding it across the rename leaves no gap in which
        # a reader could lock what is on its way out.
        lock = OfdLock.try_acquire(os.path.join(snapshots, name, names.MANIFEST))
        if lock is not None:
            with lock:
                trash.append(held.trash(os.path.join(snapshots, name)))
            _forget_markers(held, name)
    if trash:
        durable.fsync_directory(snapshots)
    return trash


def _forget_lines(held: CommitLock, current: str) -> None:
    """Remove the records of lines that nothing needs any more (see retention)."""
    found = scan.scan_snapshots(held.run_dir)
    if found.problems:
        return  # of a line that is not known
    doomed = retention.plan_lines(
        read_lines(held.run_dir),
        current=current,
        used=pool.lines_in_pool(held.run_dir) | {info.line for info in found.snapshots},
        present={info.name for info in found.snapshots},
    )
    directory = os.path.join(held.run_dir, names.LINES)
    for text in doomed:
        held.unlink(os.path.join(directory, names.line_file_name(int(text, 16))))


def _forget_markers(held: CommitLock, snapshot: str) -> None:
    recovery = os.path.join(held.run_dir, names.RECOVERY)
    held.unlink(os.path.join(recovery, names.restored_marker_name(snapshot)))
    held.unlink(os.path.join(recovery, names.restoring_marker_name(snapshot)))


def empty_trash(paths: list[str]) -> None:
    """Delete what was moved to trash. Needs no lock: nobody relies on a trash name."""
    for path in paths:
        try:
            durable.remove_tree(path)
        except OSError as error:
            logger.warning("%s could not be deleted: %s", path, error)


def hold_snapshot(path: str) -> OfdLock | None:
    """Lock a snapshot directory against pruning, as a reader; release the lock when done.

    Writes nothing. None where the file system knows no locks. FileNotFoundError: the snapshot is
    gone or being removed.
    """
    manifest = os.path.join(path, names.MANIFEST)
    try:
        lock = OfdLock.try_acquire(manifest, shared=True)
    except FileNotFoundError:
        raise
    except OSError:
        return None
    if lock is None:
        raise FileNotFoundError(f"{path} is being removed")
    return lock


def make_staging_directory(run_dir: str, generation: int, name: str, attempt: int) -> str:
    """Make the temporary directory in which snapshot `name` is put together; return its path.

    It holds the manifest's temporary, empty, which is durable once the directory is.
    A stale one of the same attempt is deleted first. Raises StaleGenerationError where another run
    has the path now, NoSpaceError, OSError.
    """
    check_not_replaced(run_dir, generation)
    text = names.temporary_name(generation, f"{name}-{attempt}")
    path = os.path.join(run_dir, names.SNAPSHOTS, text)
    durable.remove_tree(path)
    durable.make_new_directory(path)
    durable.make_empty_file(os.path.join(path, names.MANIFEST_TMP))
    return path
