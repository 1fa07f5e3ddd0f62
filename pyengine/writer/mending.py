"""Pool files that are gone, or were cut, made again before a snapshot links them.

The engine removes none whose rows a snapshot needs: people and cleaners of disks do. A segment that
a slot still holds is written once more, byte for byte: a slot keeps what was written, hashes
included, until the trainer frees it. One that lives in its file alone comes back from a snapshot
that has the same file. Name, size and checksum stay those on record: nobody else has to know.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING

from pyengine._native import hashing
from pyengine.catalog.commit_lock import check_owner
from pyengine.catalog.pool import find_in_snapshots, is_whole
from pyengine.errors import SnapshotFailedError
from pyengine.format import names
from pyengine.format.segment import checksum_of
from pyengine.fs import door, durable
from pyengine.shm.states import SlotState
from pyengine.writer.ring_view import RingView, pool_name
from pyengine.writer.session import Session

if TYPE_CHECKING:
    from pyengine._native.control import FileRecordTuple

Run = Callable[[Callable[[], bool]], Generator[None, None, bool]]
"""Runs a task in a worker; each yield waits for an event."""


def mend_steps(
    session: Session,
    ring: RingView,
    records: Iterable[FileRecordTuple],
    *,
    directory: str,
    run: Run,
) -> Generator[None, None, None]:
    """Make those pool files of `records` again that are not there whole; durable at the end.

    Main thread; each yield waits for an event. What is written lies in `directory` until it gets
    its name: the caller removes that where this does not come to its end. One warning tells what
    was lost. Raises SnapshotFailedError, which names a file that can be had no more, once all
    others are back; StaleGenerationError, with nothing written, where the run is not ours any more;
    NoSpaceError, OSError.
    """
    lost = [record for record in records if not is_whole(_path(ring, record), record[6])]
    if not lost:
        return
    # To a run that took over, or has the path now, they are not lost.
    check_owner(session.run_dir, session.generation)
    ring.make_directory()
    unwritten = []
    for record in lost:
        if not (yield from _write_steps(session, ring, record, directory, run)):
            unwritten.append(record)
    missing = _link_from_snapshots(session, ring, unwritten)
    durable.fsync_directory(ring.directory)
    if missing:
        raise SnapshotFailedError(
            f"ring {ring.name}: gone or cut short, and in neither memory nor a snapshot any more: "
            f"{_told(ring, missing)}. Put it back, or start the script again, which goes on from "
            "the newest snapshot; else snapshots fail until those rows have left the window"
        )
    session.warn(
        f"ring {ring.name}: gone or cut short, though snapshots need it: {_told(ring, lost)}; made "
        f"again, {len(lost) - len(unwritten)} from memory, {len(unwritten)} from snapshots"
    )


def _write_steps(
    session: Session, ring: RingView, record: FileRecordTuple, directory: str, run: Run
) -> Generator[None, None, bool]:
    """Write a segment from its slot; False where none holds it, or not until the end."""
    segment, lane = record[2] // ring.segment_rows, record[1]
    found = ring.slot_state(lane, segment)
    if found is None:
        return False
    slot = found[0]
    name = names.temporary_name(session.generation, pool_name(record))
    path = os.path.join(directory, name)
    try:
        if not (yield from run(partial(_write, ring, slot, record, directory, name))):
            return False
        session.bytes_written += record[6]
        # The key never comes again: all that was read was read from this segment.
        if ring.control.slot_word(slot) != (ring.key(lane, segment), SlotState.PERSISTED):
            return False
        _give_name(session, ring, path, record)
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            door.active.unlink(path)


def _write(ring: RingView, slot: int, record: FileRecordTuple, directory: str, name: str) -> bool:
    """Write a slot as it is; False, with nothing written, where it is not what the record says."""
    image = ring.image(slot)
    if checksum_of(image, ring.layout) != record[5] or hashing.verify_image(image) >= 0:
        return False
    durable.write_file(directory, name, [image], direct=True, hashed=False)
    return True


def _link_from_snapshots(
    session: Session, ring: RingView, records: list[FileRecordTuple]
) -> list[FileRecordTuple]:
    """Link files back from the newest snapshots that have them; return those that none has."""
    if not records:
        return []
    wanted = {record[5:7] for record in records}
    sources = find_in_snapshots(session.run_dir, ring.name, wanted)
    for record in records:
        source = sources.get(record[5:7])
        if source is not None:
            _give_name(session, ring, source, record)
    return [record for record in records if record[5:7] not in sources]


def _give_name(session: Session, ring: RingView, source: str, record: FileRecordTuple) -> None:
    """Link `source` into the pool in one step, over what is left of a file there."""
    name = pool_name(record)
    linked, copied = (
        ring.path(names.temporary_name(session.generation, f"{kind}-{name}"))
        for kind in ("link", "copy")
    )
    for leftover in (linked, copied):  # of a writer that died here
        with contextlib.suppress(FileNotFoundError):
            door.active.unlink(leftover)
    try:
        durable.link_or_copy(source, linked, temporary=copied)
        durable.rename(linked, ring.path(name))
    except BaseException:
        with contextlib.suppress(OSError):
            door.active.unlink(linked)
        raise


def _path(ring: RingView, record: FileRecordTuple) -> str:
    return ring.path(pool_name(record))


def _told(ring: RingView, records: list[FileRecordTuple]) -> str:
    """Return the path of the oldest of some files, and how many more they are."""
    others = len(records) - 1
    return _path(ring, records[0]) + (f" and {others} more" if others else "")
