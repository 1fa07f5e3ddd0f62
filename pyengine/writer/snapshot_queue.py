"""Staged snapshots, one after the other, in the order of their sequence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from pyengine.errors import DamageError, SnapshotFailedError
from pyengine.events import logger
from pyengine.shm.control import Entry
from pyengine.shm.states import SnapshotState, StagingState
from pyengine.writer import pool
from pyengine.writer.lock_wait import POLL_SECONDS
from pyengine.writer.segments import SegmentWriter
from pyengine.writer.session import Session
from pyengine.writer.snapshot import SnapshotJob, error_record
from pyengine.writer.staleness import StalenessWatch
from pyengine.writer.workers import Workers


class SnapshotQueue:
    """Takes staged snapshots up and steps the one under way. Main thread only.

    `receive` takes in every message that has arrived.
    """

    def __init__(
        self,
        session: Session,
        segments: SegmentWriter,
        workers: Workers,
        receive: Callable[[], None],
    ) -> None:
        self._session = session
        self._receive = receive
        self._segments = segments
        self._workers = workers
        self._staleness = StalenessWatch()
        self._job: SnapshotJob | None = None
        self._steps: Iterator[None] = iter(())

    @property
    def is_idle(self) -> bool:
        """Whether no snapshot is under way or staged."""
        return self._job is None and self._next_staged() is None

    @property
    def next_look_at(self) -> float | None:
        """The monotonic time at which the snapshot under way is to be stepped, event or not."""
        is_waiting = self._job is not None and self._job.waits_for_lock
        return time.monotonic() + POLL_SECONDS if is_waiting else None

    def step(self) -> None:
        """Go on until the snapshot under way waits for an event, or none is left."""
        while True:
            if self._job is None and not self._take_up():
                return
            try:
                next(self._steps)
                return
            except StopIteration:
                self._finish()

    def fail_unreadable(self) -> None:
        """With a dead trainer: what is staged in memory that never arrived cannot be written."""
        for entry in self._session.control.entries:
            sequence, state = entry.staging
            if state == StagingState.STAGED and not self._is_here(entry):
                entry.fail(sequence, {"type": "SnapshotFailedError", "message": "never arrived"})
                entry.move_staging(sequence, StagingState.STAGED, StagingState.FREE)

    def _is_here(self, entry: Entry) -> bool:
        try:
            descriptor = self._session.descriptor(entry)
            return descriptor is not None and self._session.has_rings(descriptor)
        except (DamageError, SnapshotFailedError, ValueError):
            return True  # it cannot be read, which `_take_up` tells

    def _next_staged(self) -> Entry | None:
        staged = [
            entry
            for entry in self._session.control.entries
            if entry.staging[1] == StagingState.STAGED
        ]
        return min(staged, key=lambda entry: entry.staging[0], default=None)

    def _take_up(self) -> bool:
        """STAGED -> WRITING for the oldest; False where there is none, or its memory is not here
        yet."""
        entry = self._next_staged()
        if entry is None:
            return False
        # What a snapshot needs was sent before it was STAGED: so it is here now.
        self._receive()
        sequence, _ = entry.staging
        found, state = entry.snapshot
        if found != sequence or state not in (SnapshotState.PENDING, SnapshotState.COMMITTING):
            # Cancelled before we looked, or decided by a predecessor that died before freeing it.
            entry.move_staging(sequence, StagingState.STAGED, StagingState.FREE)
            if state == SnapshotState.CANCELLED:
                self._session.tell("cancelled", sequence=sequence)
            return self._take_up()
        try:
            descriptor = self._session.descriptor(entry)
            if descriptor is not None and descriptor.sequence != sequence:
                raise SnapshotFailedError("the descriptor is that of another snapshot")
            is_here = descriptor is not None and self._session.has_rings(descriptor)
        except (DamageError, SnapshotFailedError, ValueError) as error:
            logger.error("snapshot %d cannot be read: %s", sequence, error)
            entry.fail(sequence, error_record(error))
            entry.move_staging(sequence, StagingState.STAGED, StagingState.FREE)
            self._session.tell("failed", sequence=sequence)
            return self._take_up()
        if descriptor is None or not is_here:
            return False
        if not entry.move_staging(sequence, StagingState.STAGED, StagingState.WRITING):
            return self._take_up()
        self._job = SnapshotJob(self._session, self._segments, self._workers, entry, descriptor)
        self._steps = self._job.steps()
        return True

    def _finish(self) -> None:
        job, self._job = self._job, None
        self._steps = iter(())
        if job is None or job.committed is None:
            return
        for warning in self._staleness.look(job.committed, job.descriptor.static):
            self._session.warn(warning)
        pool.sweep(self._session)
