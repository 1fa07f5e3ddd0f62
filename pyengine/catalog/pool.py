"""The pool of segment files: names for restored files, and what may be removed.

Everything here runs under the commit lock. A pool file is the only source of links for snapshots;
it stays until its rows left the window and no pending snapshot needs it, which its ring's segment
table knows and no file name does.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyengine.catalog.commit_lock import CommitLock
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.lines import read_lines
from pyengine.catalog.scan import committed_names, scan_snapshots
from pyengine.errors import DamageError
from pyengine.events import logger
from pyengine.format import names
from pyengine.format.buffer_header import BufferHeader, Extent
from pyengine.fs import durable
from pyengine.fs.beneath import check_size

if TYPE_CHECKING:
    from pyengine._native.control import FileRecordTuple
    from pyengine.catalog.later_files import LaterFile


@dataclass(frozen=True, slots=True)
class Adoption:
    """A snapshot's full segment file and the name that the pool is to have for it: what the ring's
    segment table will say of it, and the paths from and to which it is linked."""

    record: FileRecordTuple
    source: str
    target: str


def pool_directory(run_dir: str, ring: str) -> str:
    """Return the directory of a ring's pool."""
    return os.path.join(run_dir, names.SEGMENTS, names.path_part(ring))


def plan_adoption(
    run_dir: str, snapshot: SnapshotInfo, header: BufferHeader, *, line: int, first_sequence: int
) -> dict[str, Adoption]:
    """Return, by their names in the header, the full segment files of a ring to be restored, with
    their names under the new line. Nothing is looked at or written.

    Parts and files of segments that are not full are left out: their rows are loaded. DamageError
    where the manifest does not list a file.
    """
    directory = pool_directory(run_dir, header.ring)
    plan = {}
    for sequence, extent in enumerate(_full_segments(header), first_sequence):
        path = f"{names.ring_directory(header.ring)}/{extent.file}"
        source = os.path.join(snapshot.path, path)
        listed = snapshot.file(path)
        if listed is None or listed.covers != "segment":
            raise DamageError(f"{source}: the manifest does not list it as a segment", path=source)
        place = (extent.lane, extent.first_row - extent.file_row, header.segment_rows)
        target = os.path.join(directory, names.PoolName(line, *place, sequence).text)
        record = (line, *place, sequence, int(listed.xxh3_64, 16), listed.size_bytes)
        plan[extent.file] = Adoption(record, source, target)
    return plan


def adopt_files(held: CommitLock, ring: str, plan: Mapping[str, Adoption]) -> list[str]:
    """Give the full segment files of a restored ring their names in the pool.

    Returns which were copied, because links are refused: to be read by their names in the pool,
    which later snapshots share; the others are the snapshot's own. Names are durable once
    `pool_directory` is. NoSpaceError, OSError, DamageError or TruncatedFileError where a file has
    not the size that the manifest lists.
    """
    durable.make_directory(pool_directory(held.run_dir, ring))
    copied = []
    for file, adoption in plan.items():
        size_bytes = adoption.record[6]
        check_size(adoption.source, os.lstat(adoption.source).st_size, size_bytes)
        if held.link_or_copy(adoption.source, adoption.target) == "copy":
            copied.append(file)
    if copied:
        logger.warning(
            "%s: the file system refuses hard links; %d bytes of %s were copied into the pool",
            held.run_dir,
            sum(plan[file].record[6] for file in copied),
            ring,
        )
    return copied


def adopt_later(
    held: CommitLock, header: BufferHeader, files: Iterable[LaterFile], line: int
) -> dict[str, tuple[str, FileRecordTuple | None]]:
    """Give files with rows that came after a snapshot names in the pool under a new line; durable
    once `pool_directory` is. `header` is that of the restored ring.

    Returns, by the old path, the new one and, of a full segment, the record for the ring's segment
    table. Parts get the lowest numbers: a writer of the line must not use them for others. A file
    with rows beyond those of the ring stays where it is: they are not the line's.
    """
    directory = pool_directory(held.run_dir, header.ring)
    durable.make_directory(directory)
    adopted: dict[str, tuple[str, FileRecordTuple | None]] = {}
    record: FileRecordTuple | None
    ordered = sorted(files, key=lambda file: file.is_whole)
    for number, file in enumerate(ordered, 1):
        if not file.is_whole and not _is_within(file, header):
            adopted[file.path] = (file.path, None)
            continue
        former = file.name
        if isinstance(former, names.PartName):
            target = os.path.join(directory, names.PartName(line, number).text)
            record = None
        else:
            place = (former.lane, former.first_row, former.row_count)
            target = os.path.join(directory, names.PoolName(line, *place, number).text)
            record = (line, *place, number, file.checksum, file.size_bytes)
        held.link_or_copy(file.path, target)
        adopted[file.path] = (target, record)
    return adopted


def _is_within(file: LaterFile, header: BufferHeader) -> bool:
    """Whether a part has no row that the ring lacks at its end."""
    return isinstance(file.name, names.PartName) and all(
        run.lane < header.num_lanes
        and run.first_row + run.row_count <= header.lanes[run.lane].total_count
        for run in file.header.runs
    )


def snapshot_links(run_dir: str, ring: str, file: str) -> list[str]:
    """Return the names that snapshots have for a file of the pool, newest snapshot first.

    What people need where it is damaged: those snapshots' directories are to be moved away.
    """
    links = []
    for snapshot in reversed(committed_names(run_dir)):
        directory = os.path.join(
            run_dir, names.SNAPSHOTS, snapshot.text, names.ring_directory(ring)
        )
        paths = (os.path.join(directory, name) for name in _listed(directory))
        links += [path for path in paths if _is_same(path, file)]
    return links


def find_in_snapshots(
    run_dir: str, ring: str, wanted: Collection[tuple[int, int]]
) -> dict[tuple[int, int], str]:
    """Return, by (XXH3-64, size), the path of each segment file in the newest snapshot with it.

    The checksum covers lane and rows: it is that segment. Left out is what no snapshot lists, or
    only such as have it no more, or in another size.
    """
    found = {}
    for snapshot in scan_snapshots(run_dir).snapshots:
        for record in snapshot.files:
            if record.covers != "segment" or not record.path.startswith(
                f"{names.ring_directory(ring)}/"
            ):
                continue
            key = (int(record.xxh3_64, 16), record.size_bytes)
            path = os.path.join(snapshot.path, record.path)
            if key in wanted and is_whole(path, record.size_bytes):
                found[key] = path
    return found


def is_whole(path: str, size_bytes: int) -> bool:
    """Return whether a regular file of this size is there. Raises OSError."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size_bytes


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _full_segments(header: BufferHeader) -> Iterable[Extent]:
    """Yield one extent for each file that holds a segment which was full at the cut.

    The oldest one may begin before the window: `file_row` says how many of its rows are gone.
    Dropped rows are in no extent, so that a file may have several: all of one segment, at the rows
    where that has them. A part never is like this: its rows are of segments that were not full.
    """
    rows = header.segment_rows
    starts: dict[str, set[tuple[int, int]]] = {}
    for extent in header.extents:
        place = (extent.lane, extent.first_row - extent.file_row)
        starts.setdefault(extent.file, set()).add(place)
    for extent in header.extents:
        if len(starts.get(extent.file, ())) != 1:
            continue
        lane, start = starts.pop(extent.file).pop()
        if start >= 0 and start % rows == 0 and start + rows <= header.lanes[lane].total_count:
            yield extent


def remove_pool_files(held: CommitLock, ring: str, file_names: Iterable[str]) -> None:
    """Unlink pool files that nothing needs any more; those that are gone are no error."""
    directory = pool_directory(held.run_dir, ring)
    for name in file_names:
        held.unlink(os.path.join(directory, name))


def remove_other_lines(
    held: CommitLock, line: str, in_use: Mapping[str, Collection[int]] | None = None
) -> int:
    """Unlink the pool files of every known line but `line` (16 hex); return how many.

    Snapshots keep their own links. `in_use` names by ring further lines whose files stay: those of
    a ring that a restore has left as it was. Files of lines that neither a record nor a snapshot
    tells of stay.
    """
    known = {*read_lines(held.run_dir), *(i.line for i in scan_snapshots(held.run_dir).snapshots)}
    others = {int(text, 16) for text in known} - {int(line, 16)}
    removed = 0
    for ring, name, found in _files(held.run_dir):
        if found in others - set((in_use or {}).get(ring, ())):
            held.unlink(os.path.join(pool_directory(held.run_dir, ring), name))
            removed += 1
    return removed


def remove_line(held: CommitLock, line: int) -> None:
    """Unlink the pool files of a line that was not opened; not durable."""
    for ring, name, found in list(_files(held.run_dir)):
        if found == line:
            held.unlink(os.path.join(pool_directory(held.run_dir, ring), name))


def lines_in_pool(run_dir: str) -> set[str]:
    """Return the lines (16 hex) that files of the pool are named by."""
    return {names.line_text(line) for _, _, line in _files(run_dir)}


def _files(run_dir: str) -> Iterator[tuple[str, str, int]]:
    """Yield the ring, name and line of each file of the pool."""
    root = os.path.join(run_dir, names.SEGMENTS)
    for ring in _listed(root):
        for name in _listed(os.path.join(root, ring)):
            parsed = names.parse_pool_name(name) or names.parse_part_name(name)
            if parsed is not None:
                yield ring, name, parsed.line


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
