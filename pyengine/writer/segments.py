"""Sealed segments go to disk as they seal, snapshot or not.

    SEALED -> PERSISTING -> hash in place, one write of the slot under a temporary name, fsync
           -> WRITTEN    -> rename, fsync of the directory, file record into the control block
           -> PERSISTED

Each arrow is a swap that the trainer may have won by freeing the slot; then the file is unlinked. A
file whose write or fsync failed is lost and written once more under a new name; after a second
failure the slot is SEALED again, snapshots that need it fail, and it is tried again later.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pyengine._native import hashing
from pyengine.catalog.endings import Loss
from pyengine.errors import NoSpaceError, PyengineError
from pyengine.events import logger
from pyengine.format import names
from pyengine.format.segment import set_counts
from pyengine.fs import door, durable
from pyengine.shm.states import SlotState
from pyengine.writer.ring_view import RingView, pool_name
from pyengine.writer.session import Session
from pyengine.writer.workers import Workers

if TYPE_CHECKING:
    from pyengine._native.control import FileRecordTuple

IN_FLIGHT = 5
"""Segments under way at a time."""

_WRITING = 3
"""Of those the ones that may use the disk: while two are flushed, by one journal commit, a third is
written, and the rest are hashed meanwhile. Without this number all would hash together and then
write together. Files of 3.6 MB one after the other reach 0.4 of the rate of one large file, two at
a time 0.63, three and four 0.93 (2026-11-30)."""

_BATCH = 4
"""Files that get their names together, for one fsync of the directory, while more are on their way:
each of those fsyncs is a journal commit that holds up the others."""

_UNWRITTEN = (SlotState.SEALED, SlotState.PERSISTING, SlotState.WRITTEN)

_ATTEMPTS = 2
_BACKOFF_SECONDS = (1.0, 30.0)
_LINE_OFFSET = 16


@dataclass(frozen=True, slots=True)
class _Image:
    """A segment file under its temporary name."""

    line: int
    checksum: int


@dataclass(slots=True, eq=False)
class _Job:
    """One segment on its way to disk."""

    ring: RingView
    slot: int
    key: int
    sequence: int
    temporary: str
    future: Future[_Image] = field(init=False)

    @property
    def place(self) -> tuple[str, int]:
        return self.ring.name, self.slot

    def record(self, image: _Image) -> FileRecordTuple:
        ring = self.ring
        segment, lane = divmod(self.key, ring.control.lanes)
        rows = ring.segment_rows
        return (
            image.line,
            lane,
            segment * rows,
            rows,
            self.sequence,
            image.checksum,
            ring.layout.file_bytes,
        )


@dataclass(slots=True)
class _Failure:
    """A segment that could not be written: how often, why, and when to try again."""

    attempts: int
    error: Exception
    retry_at: float


class SegmentWriter:
    """Persists the sealed segments of all rings. Main thread only."""

    def __init__(self, session: Session, workers: Workers) -> None:
        self._session = session
        self._workers = workers
        self._jobs: dict[tuple[str, int], _Job] = {}
        self._writing = threading.Semaphore(_WRITING)
        self._won: list[tuple[_Job, FileRecordTuple]] = []
        self._failures: dict[tuple[str, int], _Failure] = {}
        self.pinned: set[tuple[str, int]] = set()
        """(ring, slot) that a part is being copied from: not to be persisted meanwhile."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way and nothing waits, except what failed and waits longer."""
        return not self._jobs and next(self._waiting(), None) is None

    @property
    def has_unwritten(self) -> bool:
        """Whether sealed segments are in memory alone: their writes failed, or have not begun."""
        rings = self._session.rings.values()
        return any(ring.control.slots_in(SlotState.SEALED) for ring in rings)

    def losses(self) -> Iterator[Loss]:
        """Yield what would be lost by an end of the writer now: full segments without a file."""
        for ring in self._session.rings.values():
            keys = [key for state in _UNWRITTEN for _, key in ring.control.slots_in(state)]
            failures = [self._failures.get((ring.name, key)) for key in keys]
            why = next((str(one.error) for one in failures if one), "the time to finish was over")
            if keys:
                yield Loss(ring.name, len(keys) * ring.segment_rows, why)

    @property
    def rings_in_use(self) -> list[RingView]:
        """Rings that segments under way belong to."""
        return [job.ring for job in self._jobs.values()]

    def step(self) -> None:
        """Take in what has ended, and start what fits. Fsyncs directories, else does not block."""
        self._won += self._swap_written()
        self.start()
        if len(self._won) >= _BATCH or not self._count_running():
            won, self._won = self._won, []
            self._publish(won)

    def start(self) -> None:
        """Begin with the oldest sealed segments, as many as may be under way."""
        waiting = sorted(self._waiting(), key=lambda item: item[2])
        for ring, slot, key in waiting[: max(0, IN_FLIGHT - self._count_running())]:
            if ring.control.move_slot(slot, key, SlotState.SEALED, SlotState.PERSISTING):
                sequence = ring.control.next_file_sequence()
                name = names.temporary_name(self._session.generation, f"{key}-{sequence}.seg")
                job = _Job(ring, slot, key, sequence, name)
                self._jobs[job.place] = job
                job.future = self._workers.submit(partial(_write, job, self._writing))

    def failure(self, ring: RingView, key: int) -> Exception | None:
        """Return why a segment could not be written, None while it may still be."""
        failure = self._failures.get((ring.name, key))
        return failure.error if failure is not None and failure.attempts >= _ATTEMPTS else None

    def retry_now(self) -> None:
        """Forget failures: somebody needs the segments now."""
        self._failures.clear()

    def next_retry_at(self) -> float | None:
        """Return the next monotonic time at which a failed segment becomes due again, or None.

        One that is due already has begun, waits for a worker, or left the ring meanwhile: no time
        changes that.
        """
        now = time.monotonic()
        times = [failure.retry_at for failure in self._failures.values() if failure.retry_at > now]
        return min(times, default=None)

    def _count_running(self) -> int:
        return sum(not job.future.done() for job in self._jobs.values())

    def _waiting(self) -> Iterator[tuple[RingView, int, int]]:
        now = time.monotonic()
        for ring in self._session.rings.values():
            for slot, key in ring.control.slots_in(SlotState.SEALED):
                place = (ring.name, slot)
                failure = self._failures.get((ring.name, key))
                is_due = failure is None or failure.retry_at <= now
                if is_due and place not in self._jobs and place not in self.pinned:
                    yield ring, slot, key

    def _swap_written(self) -> Iterator[tuple[_Job, FileRecordTuple]]:
        """PERSISTING -> WRITTEN for what has ended; yield the jobs that won."""
        known = {job.place for job, _ in self._won}
        ended = [job for job in self._jobs.values() if job.future.done()]
        for job in [job for job in ended if job.place not in known]:
            error = job.future.exception()
            if error is not None:
                del self._jobs[job.place]
                self._fail(job, error, SlotState.PERSISTING)
                continue
            image = job.future.result()
            self._session.bytes_written += job.ring.layout.file_bytes
            moved = job.ring.control.move_slot(
                job.slot, job.key, SlotState.PERSISTING, SlotState.WRITTEN
            )
            if moved:
                yield job, job.record(image)
            else:
                del self._jobs[job.place]
                _unlink(job.ring.path(job.temporary))

    def _publish(self, won: list[tuple[_Job, FileRecordTuple]]) -> None:
        """Give the files their names, one fsync a directory, then WRITTEN -> PERSISTED."""
        for ring in dict.fromkeys(job.ring for job, _ in won):
            batch = [(job, record) for job, record in won if job.ring is ring]
            try:
                for job, record in batch:
                    durable.rename(ring.path(job.temporary), ring.path(pool_name(record)))
                durable.fsync_directory(ring.directory)
            except (OSError, NoSpaceError) as error:
                for job, record in batch:
                    _unlink(ring.path(job.temporary))
                    _unlink(ring.path(pool_name(record)))
                    self._fail(job, error, SlotState.WRITTEN)
            else:
                for job, record in batch:
                    self._settle(job, record)
            finally:
                for job, _ in batch:
                    del self._jobs[job.place]

    def _settle(self, job: _Job, record: FileRecordTuple) -> None:
        ring = job.ring
        # Ours even where the slot was freed meanwhile: the record counts from PERSISTED only.
        ring.control.set_slot_file(job.slot, record)
        if ring.control.move_slot(job.slot, job.key, SlotState.WRITTEN, SlotState.PERSISTED):
            ring.lines.add(record[0])
        else:
            _unlink(ring.path(pool_name(record)))
        self._failures.pop((ring.name, job.key), None)
        self._session.no_longer(f"persist {ring.name}")

    def _fail(self, job: _Job, error: BaseException, state: SlotState) -> None:
        if not isinstance(error, Exception):
            raise error
        ring = job.ring
        if not ring.control.move_slot(job.slot, job.key, state, SlotState.SEALED):
            return
        former = self._failures.get((ring.name, job.key))
        attempts = former.attempts + 1 if former is not None else 1
        shortest, longest = _BACKOFF_SECONDS
        wait = min(longest, shortest * 2 ** max(0, attempts - _ATTEMPTS))
        retry_at = time.monotonic() + (0 if attempts < _ATTEMPTS else wait)
        self._failures[ring.name, job.key] = _Failure(attempts, error, retry_at)
        logger.error("segment %d of ring %s: attempt %d: %s", job.key, ring.name, attempts, error)
        if not isinstance(error, (OSError, PyengineError)):
            logger.error("unexpected", exc_info=error)
        if attempts == _ATTEMPTS:
            self._session.warn(
                f"ring {ring.name}: a segment could not be written: {error}",
                once=f"persist {ring.name}",
            )


def _write(job: _Job, writing: threading.Semaphore) -> _Image:
    """Hash and write one slot. Runs beside the trainer, which may free the slot meanwhile: then
    the bytes are worthless, and the swap that follows fails."""
    ring = job.ring
    image = ring.image(job.slot)
    set_counts(image, ring.layout, ring.segment_rows)
    # Rows that were there before the run began were not given a line when their segment opened.
    line = ring.control.line
    struct.pack_into("<Q", image, _LINE_OFFSET, line)
    checksum = hashing.seal_image(image)
    ring.make_directory()
    with writing:
        durable.write_file(ring.directory, job.temporary, [image], direct=True, hashed=False)
    return _Image(line, checksum)


def _unlink(path: str) -> None:
    """Remove a file of our own that nobody relies on."""
    with contextlib.suppress(OSError):
        door.active.unlink(path)
