"""Branches: a new run directory that begins with one snapshot of another run.

Files are hard links on one file system, reflinks or copies across two; the manifest is always a
copy, because its lock is what readers hold against pruning: one file under two names would let a
reader of the branch keep the source from pruning. The new run is put together beside its place, the
manifest last, and appears there by one rename. The source is held against pruning meanwhile and
gains nothing but links.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass
from os.path import samestat
from typing import Any

from pyengine.catalog import scan
from pyengine.catalog.commit import hold_snapshot
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.new_run import appear, check_new_run, place_beside
from pyengine.catalog.run import LATEST, split_named
from pyengine.catalog.run_record import write_run_record
from pyengine.errors import DamageError, RunDirectoryError
from pyengine.events import Progress
from pyengine.format import names
from pyengine.format.manifest import FileRecord, utc_timestamp
from pyengine.fs import door, durable
from pyengine.fs.beneath import check_size, open_beneath, read_beneath

_ATTEMPTS = 5
_RECORD_MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Branch:
    """What a branch was made of: `linked_bytes` are shared with the source, `copied_bytes` not.

    `passed_over` names older snapshots of the same step.
    """

    path: str
    run_id: str
    snapshot: str
    source: str
    source_run_id: str
    global_step: int
    linked_bytes: int
    copied_bytes: int
    passed_over: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON."""
        return asdict(self)


def branch_run(source: str, new: str, *, progress: Progress | None = None) -> Branch:
    """Make the run directory `new` from one snapshot; durable on return.

    `source` is `RUN@STEP`, `RUN@latest` or the directory of a snapshot; of several snapshots of one
    step the newest is taken, one of weights alone where there is no other. `new` must not exist, or
    be empty. The branch has a run id of its own, names its origin in run.json, and its retention
    counts from this snapshot. Safe while a trainer writes to the source. Blocks for as long as
    copying takes where links are refused.

    Raises RunDirectoryError (no such run or snapshot; `new` is in use), RunBusyError (another call
    is making it), DamageError and FormatVersionError (a manifest, or a file of another size),
    NoSpaceError, OSError; nothing is left at `new` then.
    """
    target = os.path.realpath(new)
    for attempt in range(1, _ATTEMPTS + 1):
        info, passed_over = choose_named(source)
        _check_target(target, info)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold_snapshot(info.path) or contextlib.nullcontext())
            except FileNotFoundError:
                if attempt == _ATTEMPTS:
                    raise
                continue  # pruned since we looked
            place = stack.enter_context(place_beside(target))
            branch = _fill(place, target, info, passed_over, progress)
            appear(place, target)
            return branch
    raise AssertionError("the last attempt returns or raises")


def choose_named(source: str) -> tuple[SnapshotInfo, tuple[str, ...]]:
    """Return the snapshot that `RUN@STEP`, `RUN@latest` or a snapshot's directory names, and the
    names of older ones of the same step. RunDirectoryError, DamageError, FormatVersionError."""
    path = os.path.realpath(source)
    if scan.has_manifest(path):
        return SnapshotInfo.of(path, scan.read_manifest(path)), ()
    named = split_named(source)
    if named is None:
        raise RunDirectoryError(
            f"{source}: say which snapshot: RUN@STEP, RUN@{LATEST}, or a snapshot's directory",
            path=source,
        )
    return choose_step(*named)


def choose_step(run: str, step: int | None) -> tuple[SnapshotInfo, tuple[str, ...]]:
    """Return the newest snapshot of a run that has this step, or None: any; one of weights alone
    where there is no other. Else as `choose_named`."""
    run_dir = os.path.realpath(run)
    found = [name for name in scan.committed_names(run_dir) if step is None or name.step == step]
    if not found:
        raise RunDirectoryError(_not_found(run_dir, step), path=run_dir)
    chosen = found[-1]
    info = scan.read_snapshot(run_dir, chosen.text)
    for name in reversed(found[:-1]):
        if not info.is_weights_only:
            break
        older = scan.read_snapshot(run_dir, name.text)
        if not older.is_weights_only:
            chosen, info = name, older
    others = [name for name in found if name.step == chosen.step and name != chosen]
    return info, tuple(name.text for name in others)


def _not_found(run_dir: str, step: int | None) -> str:
    if not os.path.isdir(os.path.join(run_dir, names.SNAPSHOTS)):
        what = "is no run directory" if os.path.exists(run_dir) else "does not exist"
        return f"{run_dir} {what}"
    steps = sorted({name.step for name in scan.committed_names(run_dir)})
    if not steps:
        return f"{run_dir} holds no snapshot"
    shown = ", ".join(map(str, steps[-10:]))
    return f"{run_dir} holds no snapshot of step {step}; the newest steps are {shown}"


def _check_target(target: str, info: SnapshotInfo) -> None:
    check_new_run(target)
    inside = os.path.dirname(info.path)
    if os.path.basename(inside) == names.SNAPSHOTS:
        inside = os.path.dirname(inside)
    if os.path.commonpath((target, inside)) == inside:
        raise RunDirectoryError(f"{target} lies inside the run {inside}", path=target)


def _fill(
    place: str,
    target: str,
    info: SnapshotInfo,
    passed_over: tuple[str, ...],
    progress: Progress | None,
) -> Branch:
    for name in names.RUN_DIRECTORIES:
        durable.make_directory(os.path.join(place, name))
    run_id = write_run_record(place, branched_from=_origin(info))
    _copy_line(place, info)
    snapshot = os.path.join(place, names.SNAPSHOTS, info.name)
    durable.make_directory(snapshot)
    linked_bytes = copied_bytes = 0
    for record in info.files:
        if progress is not None:
            progress(linked_bytes + copied_bytes, info.size_bytes)
        if _take_over(info, record, snapshot) == "copy":
            copied_bytes += record.size_bytes
        else:
            linked_bytes += record.size_bytes
    for directory, _, _ in os.walk(snapshot):
        durable.fsync_directory(directory)
    data = read_beneath(info.path, names.MANIFEST, limit_bytes=_RECORD_MAX_BYTES)
    durable.replace_file(snapshot, names.MANIFEST, data, temporary=names.MANIFEST_TMP)
    durable.replace_symlink(
        place,
        names.LATEST,
        f"{names.SNAPSHOTS}/{info.name}",
        temporary=names.temporary_name(0, names.LATEST),
    )
    return Branch(
        path=target,
        run_id=run_id,
        snapshot=info.name,
        source=info.path,
        source_run_id=info.run_id,
        global_step=info.global_step,
        linked_bytes=linked_bytes,
        copied_bytes=copied_bytes,
        passed_over=passed_over,
    )


def _origin(info: SnapshotInfo) -> dict[str, Any]:
    return {
        "run_id": info.run_id,
        "path": info.path,
        "snapshot": info.name,
        "line": info.line,
        "branched_at": utc_timestamp(),
    }


def _copy_line(place: str, info: SnapshotInfo) -> None:
    """Take the record of the snapshot's line along, where there is one: its history stays known."""
    lines = os.path.join(os.path.dirname(os.path.dirname(info.path)), names.LINES)
    name = names.line_file_name(int(info.line, 16))
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        data = read_beneath(lines, name, limit_bytes=_RECORD_MAX_BYTES)
        durable.write_file(os.path.join(place, names.LINES), name, [data])
        durable.fsync_directory(os.path.join(place, names.LINES))


def _take_over(info: SnapshotInfo, record: FileRecord, snapshot: str) -> str:
    """Link or copy one file, which must be what the manifest says it is; return which."""
    source = os.path.join(info.path, record.path)
    target = os.path.join(snapshot, record.path)
    directory, name = os.path.split(target)
    durable.make_directory(directory)
    temporary = os.path.join(directory, names.temporary_name(0, name))
    fd = open_beneath(info.path, record.path)
    try:
        status = os.fstat(fd)
        check_size(source, status.st_size, record.size_bytes)
        how = durable.link_or_copy(source, target, temporary=temporary)
        if how == "link" and not samestat(status, os.lstat(target)):
            # Exchanged meanwhile, or of an overlay's lower layer: a link copies it to the upper
            # one, where it is another file. What was opened is what was checked.
            durable.remove_tree(target)
            how = durable.copy_open(fd, target, temporary=temporary)
    finally:
        door.active.close(fd)
    if os.lstat(target).st_size != status.st_size:
        raise DamageError(f"{source} was exchanged while it was being copied", path=source)
    return how
