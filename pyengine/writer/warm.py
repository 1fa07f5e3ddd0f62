"""After a restore: read the mapped files of a ring into the page cache and verify their blocks.

    order       newest segments first, which stay longest; two at a time, so that one is hashed
                while the other is read
    a segment   header and block table, then run after run of blocks: ask ahead, read, hash, mark
    manners     started only while there is nothing else to do; before each run the disk is left,
                for a moment, to gathers that wait for it; an end is never further than a run

A file is read, not mapped, so that a bad sector is an error instead of a signal. Damage, read
twice, is told, and left for the trainer to meet at its first touch.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyengine._native import hashing
from pyengine.catalog.pool import snapshot_links
from pyengine.errors import ClosedError, DamageError, PyengineError, TruncatedFileError
from pyengine.format.frame import FullHeaders, read_frame, read_full_frame, read_into
from pyengine.format.segment import (
    SegmentLayout,
    iter_blocks,
    parse_header,
    verify_checksum,
)
from pyengine.fs import door
from pyengine.fs.beneath import ask_ahead, drop_cache, open_regular
from pyengine.shm.headroom import headroom
from pyengine.writer.ring_view import RingView, pool_name
from pyengine.writer.session import Session
from pyengine.writer.workers import Workers

if TYPE_CHECKING:
    from pyengine._native.control import FileRecordTuple

_SEGMENTS_AT_ONCE = 2
_RUN_BYTES = 1024 * 1024
_RUNS_AHEAD = 2
_ROOM_SHARE = 0.75
_FEW_READS = 64
"""Blocks that gathers wait for and that leave a disk with time for more."""

_GIVE_WAY_SECONDS = 0.02
_LOOK_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class _Segment:
    """A segment that lives in a pool file."""

    lane: int
    number: int
    record: FileRecordTuple


@dataclass(frozen=True, slots=True)
class _Run:
    """Blocks [first, end) of an image, one behind the other from byte `offset`."""

    first: int
    end: int
    offset: int
    sizes: array[int]
    size_bytes: int


def warm_steps(session: Session, workers: Workers, ring: RingView) -> Generator[None, None, None]:
    """Read and verify every mapped segment of a ring once; each yield waits for an event.

    Closed before its end, it stops what is under way.
    """
    wanted = _mapped(ring)
    tasks: deque[tuple[_Segment, Future[None]]] = deque()
    verified = damaged = 0
    verifier = _Verifier(ring)
    try:
        while True:
            while len(tasks) < _SEGMENTS_AT_ONCE and (found := next(wanted, None)) is not None:
                tasks.append((found, workers.submit(partial(verifier.verify, found))))
            if not tasks:
                break
            while not tasks[0][1].done():
                yield
            segment, future = tasks.popleft()
            error = future.exception()
            if error is None:
                verified += 1
            elif isinstance(error, FileNotFoundError):
                continue  # aged out while we looked
            elif isinstance(error, (PyengineError, OSError)):
                damaged += 1
                path = ring.path(pool_name(segment.record))
                links = snapshot_links(session.run_dir, ring.name, path)
                where = f"; the same file: {', '.join(links)}" if links else ""
                session.warn(f"ring {ring.name}: {error}{where}")
            else:
                raise error
    finally:
        verifier.stop()
    session.tell("warmed", ring=ring.name, segments=verified, damaged=damaged)


def _mapped(ring: RingView) -> Iterator[_Segment]:
    """Yield segments that are not verified yet, newest first, as they are when asked; no more than
    memory has room for, where later ones would push the earlier out."""
    control, rows = ring.control, ring.segment_rows
    room = _ROOM_SHARE * headroom(with_shm=False)
    segments = {
        (number, lane)
        for lane in range(control.lanes)
        for number in range(control.tail(lane) // rows, -(-control.total_count(lane) // rows))
    }
    for number, lane in sorted(segments, reverse=True):
        place = control.place(lane, number)
        if isinstance(place, tuple) and not control.is_verified(
            lane, number, 0, ring.layout.block_count
        ):
            room -= ring.layout.file_bytes
            if room < 0:
                return
            yield _Segment(lane, number, place)


def _plan_runs(layout: SegmentLayout) -> Iterator[_Run]:
    """Cut the blocks of an image into runs of some _RUN_BYTES; no block is cut."""
    first, begin, sizes = 0, layout.header_bytes, array("Q")
    for block, offset, size in iter_blocks(layout):
        if sizes and offset + size - begin > _RUN_BYTES:
            yield _Run(first, block, begin, sizes, offset - begin)
            first, begin, sizes = block, offset, array("Q")
        sizes.append(size)
    yield _Run(first, layout.block_count, begin, sizes, layout.block_table_offset - begin)


class _Stopped(Exception):
    """The warming ends before the segment does."""


class _Verifier:
    """Verifies segments of one ring, in threads; `stop` ends them all."""

    def __init__(self, ring: RingView) -> None:
        self._ring = ring
        self._headers = FullHeaders(ring.layout)
        self._runs = list(_plan_runs(ring.layout))
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        """Have every thread end before its next run. Does not block."""
        self._is_stopped.set()

    def verify(self, segment: _Segment) -> None:
        """Read a segment and mark its blocks; what a second read finds right is right.

        Raises DamageError, OSError; blocks before the bad one are marked.
        """
        path = self._ring.path(pool_name(segment.record))
        fd, _ = open_regular(path)
        try:
            try:
                self._verify_once(fd, path, segment)
            except DamageError:
                drop_cache(fd)  # pages that the trainer has mapped stay
                self._verify_once(fd, path, segment)
        except (_Stopped, ClosedError):
            pass  # nobody waits for it: the writer ends, or the ring was replaced
        finally:
            door.active.close(fd)

    def _verify_once(self, fd: int, path: str, segment: _Segment) -> None:
        control, lane, number = self._ring.control, segment.lane, segment.number
        hashes = self._read_hashes(fd, path, segment.record)
        buffer = memoryview(bytearray(max(run.size_bytes for run in self._runs)))
        for index, run in enumerate(self._runs):
            if control.is_verified(lane, number, run.first, run.end):
                continue
            self._give_way()
            for later in self._runs[index + 1 : index + 1 + _RUNS_AHEAD]:
                ask_ahead(fd, later.offset, later.size_bytes)
            data = buffer[: run.size_bytes]
            read_into(fd, data, run.offset, path)
            bad = hashing.find_bad_block(data, run.sizes, hashes[run.first : run.end])
            good = run.end if bad < 0 else run.first + bad
            control.mark_verified(lane, number, run.first, good)
            if bad >= 0:
                offset = run.offset + sum(run.sizes[:bad])
                raise DamageError(
                    f"{path}: block {good} at byte {offset} is damaged", path=path, offset=offset
                )

    def _read_hashes(self, fd: int, path: str, record: FileRecordTuple) -> memoryview:
        """Return the block table of a file that is the one on record, laid out as the ring is."""
        checksum, expected_bytes = record[5:]
        found = read_full_frame(fd, self._headers, checksum)
        if found is not None:
            return found[1]
        size_bytes = os.fstat(fd).st_size
        if size_bytes < expected_bytes:
            raise TruncatedFileError(
                f"{path}: {size_bytes} bytes, its record says {expected_bytes}",
                path=path,
                offset=size_bytes,
                expected=expected_bytes,
                got=size_bytes,
            )
        image = memoryview(read_frame(fd, size_bytes, path))
        got = verify_checksum(image, parse_header(image, path), path)
        raise DamageError(
            f"{path}: the checksum is not the recorded one",
            path=path,
            offset=0,
            expected=checksum,
            got=got,
        )

    def _give_way(self) -> None:
        """Leave the disk to gathers that wait for much, for a moment: dead ones stay counted."""
        until = time.monotonic() + _GIVE_WAY_SECONDS
        while not self._is_stopped.is_set():
            if self._ring.control.cold_reads <= _FEW_READS or time.monotonic() >= until:
                return
            time.sleep(_LOOK_SECONDS)
        raise _Stopped
