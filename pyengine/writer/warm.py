"""After a restore: read the mapped files of a ring into the page cache and verify their blocks.

Only when there is nothing else to do, one segment at a time, oldest last: the newest rows are
sampled as often as any and stay longest. A file is read, not mapped, so that a bad sector is an
error instead of a signal. Damage, read twice, is told, and left for the trainer to meet at its
first touch.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyengine._native import hashing
from pyengine.catalog.pool import snapshot_links
from pyengine.errors import DamageError, PyengineError, TruncatedFileError
from pyengine.format.segment import iter_blocks, parse_header, verify_checksum
from pyengine.fs import door
from pyengine.fs.beneath import drop_cache
from pyengine.writer.ring_view import RingView, pool_name
from pyengine.writer.session import Session
from pyengine.writer.workers import Workers

if TYPE_CHECKING:
    from pyengine._native.control import FileRecordTuple


def warm_steps(session: Session, workers: Workers, ring: RingView) -> Iterator[None]:
    """Read and verify every mapped segment of a ring once; each yield waits for an event."""
    verified = damaged = 0
    for lane, segment, record in _mapped(ring):
        future = workers.submit(partial(_verify, ring, record))
        while not future.done():
            yield
        error = future.exception()
        if error is None:
            for block in range(ring.layout.block_count):
                ring.control.mark_verified(lane, segment, block)
            verified += 1
        elif isinstance(error, FileNotFoundError):
            continue  # aged out while we looked
        elif isinstance(error, (PyengineError, OSError)):
            damaged += 1
            links = snapshot_links(session.run_dir, ring.name, ring.path(pool_name(record)))
            where = f"; the same file: {', '.join(links)}" if links else ""
            session.warn(f"ring {ring.name}: {error}{where}")
        else:
            raise error
    session.tell("warmed", ring=ring.name, segments=verified, damaged=damaged)


def _mapped(ring: RingView) -> Iterator[tuple[int, int, FileRecordTuple]]:
    """Yield (lane, segment, record) of mapped segments, newest first, as they are when asked."""
    control, rows = ring.control, ring.segment_rows
    segments = {
        (segment, lane)
        for lane in range(control.lanes)
        for segment in range(control.tail(lane) // rows, -(-control.total_count(lane) // rows))
    }
    for segment, lane in sorted(segments, reverse=True):
        place = control.place(lane, segment)
        if isinstance(place, tuple) and not _is_verified(ring, lane, segment):
            yield lane, segment, place


def _is_verified(ring: RingView, lane: int, segment: int) -> bool:
    blocks = range(ring.layout.block_count)
    return all(ring.control.is_verified(lane, segment, block) for block in blocks)


def _verify(ring: RingView, record: FileRecordTuple) -> None:
    path = ring.path(pool_name(record))
    try:
        _verify_once(path, record)
    except DamageError:
        _forget_cached(path)
        _verify_once(path, record)


def _verify_once(path: str, record: FileRecordTuple) -> None:
    size_bytes = record[6]
    # Never closed by hand: an exception's traceback may still hold a view when it travels on.
    image = memoryview(mmap.mmap(-1, size_bytes))
    got = _read(path, image)
    if got != size_bytes:
        raise TruncatedFileError(
            f"{path}: {got} bytes, its record says {size_bytes}",
            path=path,
            offset=got,
            expected=size_bytes,
            got=got,
        )
    header = parse_header(image, path)
    checksum = verify_checksum(image, header, path)
    if checksum != record[5] or header.file_bytes != size_bytes:
        raise DamageError(
            f"{path}: the checksum is not the recorded one",
            path=path,
            offset=0,
            expected=record[5],
            got=checksum,
        )
    block = hashing.verify_image(image)
    if block >= 0:
        offset = next(start for index, start, _ in iter_blocks(header) if index == block)
        raise DamageError(
            f"{path}: block {block} at byte {offset} is damaged", path=path, offset=offset
        )


def _forget_cached(path: str) -> None:
    """Let the next look be at the disk; pages that the trainer has mapped stay."""
    fd = door.active.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        drop_cache(fd)
    finally:
        door.active.close(fd)


def _read(path: str, image: memoryview) -> int:
    """Fill `image` from the file; return its size where that is smaller, else the file's size."""
    fd = door.active.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        at = 0
        while at < len(image):
            count = door.active.pread_into(fd, [image[at : at + 8 * 1024 * 1024]], at)
            if count == 0:
                return at
            at += count
        return os.fstat(fd).st_size
    finally:
        door.active.close(fd)
