"""One snapshot from STAGED to its end: files, links, headers, then the commit.

A job is a generator that the main loop steps; each yield waits for an event. The order: segments
first, oldest first, because they hold slots that the trainer wants back; the part with the open
rows; the staged files; links, buffer headers, fsync of every directory; then catalog.commit. The
staging slot stays WRITING until the snapshot is decided. A failed write is repeated once from
shared memory, in a new directory; then the snapshot is FAILED and says why.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import cast

from pyengine import errors
from pyengine.catalog.commit import (
    empty_trash,
    find_committed,
    make_staging_directory,
    publish_snapshot,
)
from pyengine.catalog.info import SnapshotInfo
from pyengine.errors import (
    NoSpaceError,
    PyengineError,
    SnapshotFailedError,
    StaleGenerationError,
)
from pyengine.events import logger
from pyengine.format.descriptor import SnapshotDescriptor
from pyengine.format.manifest import ComponentRecord, Manifest
from pyengine.format.names import is_trash, path_part, snapshot_name
from pyengine.fs import durable
from pyengine.fs.locks import OfdLock
from pyengine.shm.control import Entry, Outcome
from pyengine.shm.states import SnapshotState, StagingState
from pyengine.writer.lock_wait import lock_steps
from pyengine.writer.segments import SegmentWriter
from pyengine.writer.session import Session
from pyengine.writer.snapshot_files import SnapshotFiles
from pyengine.writer.workers import Workers

_ATTEMPTS = 2


class CancelledError(Exception):
    """The trainer gave the snapshot up; never leaves this layer."""


class SnapshotJob:
    """The work on one staged snapshot. Main thread only."""

    def __init__(
        self,
        session: Session,
        segments: SegmentWriter,
        workers: Workers,
        entry: Entry,
        descriptor: SnapshotDescriptor,
    ) -> None:
        self._session = session
        self._segments = segments
        self._workers = workers
        self._entry = entry
        self._descriptor = descriptor
        self._started_ns = time.monotonic_ns()
        self.committed: SnapshotInfo | None = None
        self.waits_for_lock = False
        """Whether the next step is due soon, event or not."""
        self.name = snapshot_name(
            descriptor.global_step, descriptor.generation, descriptor.sequence
        )

    @property
    def descriptor(self) -> SnapshotDescriptor:
        """What the trainer staged."""
        return self._descriptor

    def steps(self) -> Iterator[None]:
        """Bring the snapshot to its end, whatever it is, and free the staging slot."""
        sequence = self._descriptor.sequence
        try:
            yield from self._persist()
        except CancelledError:
            logger.info("snapshot %s was cancelled", self.name)
            self._session.tell("cancelled", sequence=sequence)
        except Exception as error:
            # The edge of a job: one snapshot may fail, the writer and the others go on.
            if not isinstance(error, (OSError, PyengineError)):
                logger.exception("unexpected error in snapshot %s", self.name)
            self._fail(error)
        finally:
            self._entry.move_staging(sequence, StagingState.WRITING, StagingState.FREE)

    def _persist(self) -> Iterator[None]:
        self._check_cancelled()
        if self._is_committed_already():
            return
        self._segments.retry_now()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                yield from self._attempt(attempt)
                return
            except OSError as error:
                self._roll_back()
                logger.error("snapshot %s, attempt %d: %s", self.name, attempt, error)
                if attempt == _ATTEMPTS:
                    raise
            except NoSpaceError:
                self._roll_back()
                raise

    def _attempt(self, attempt: int) -> Iterator[None]:
        session, descriptor = self._session, self._descriptor
        directory = make_staging_directory(session.run_dir, session.generation, self.name, attempt)
        files = SnapshotFiles(session, self._segments, self._workers, descriptor, directory)
        try:
            for _ in files.steps(session.stagings[self._entry.index].arena):
                yield
                self._check_cancelled()
            yield from self._publish(directory, files)
        except BaseException:
            files.abandon()
            self._remove(directory)
            raise
        finally:
            files.release()

    def _remove(self, directory: str) -> None:
        """Delete what a failed attempt left: its directory, or what the commit made of it."""
        with contextlib.suppress(OSError):
            durable.remove_tree(directory)
            snapshots = os.path.dirname(directory)
            trash = [entry for entry in os.listdir(snapshots) if is_trash(entry)]
            empty_trash([os.path.join(snapshots, entry) for entry in trash])

    def _publish(self, directory: str, files: SnapshotFiles) -> Iterator[None]:
        session = self._session
        manifest = self._manifest(files)

        def visible(info: SnapshotInfo) -> None:
            self._settle(info, files.new_bytes)

        lock = yield from self._take_lock()
        with lock:
            info = publish_snapshot(
                session.run_dir,
                directory,
                manifest,
                begin=self._begin,
                keep_last=session.keep_last,
                keep_best=session.keep_best,
                keep_best_mode=session.keep_best_mode,
                visible=visible,
                lines_in_use={path_part(name): ring.lines for name, ring in session.rings.items()},
                lock=lock,
            )
        if info is None:
            raise CancelledError

    def _take_lock(self) -> Generator[None, None, OfdLock]:
        steps = lock_steps(self._session)
        self.waits_for_lock = True
        try:
            while True:
                try:
                    next(steps)
                except StopIteration as taken:
                    return cast("OfdLock", taken.value)
                yield
                self._check_cancelled()
        finally:
            self.waits_for_lock = False

    def _begin(self) -> bool:
        return self._entry.move_snapshot(
            self._descriptor.sequence, SnapshotState.PENDING, SnapshotState.COMMITTING
        )

    def _settle(self, info: SnapshotInfo, new_bytes: int) -> None:
        """The manifest is durable: tell the trainer, whatever comes after."""
        session = self._session
        self._entry.outcome = Outcome(
            time.monotonic_ns() - self._started_ns, session.bytes_written, new_bytes
        )
        session.bytes_written = 0
        session.control.parent = info.name
        self._entry.move_snapshot(
            self._descriptor.sequence, SnapshotState.COMMITTING, SnapshotState.COMMITTED
        )
        self._entry.move_staging(self._descriptor.sequence, StagingState.WRITING, StagingState.FREE)
        self.committed = info
        self._note_totals()
        logger.info("snapshot %s is committed", info.name)
        session.tell("committed", sequence=self._descriptor.sequence, name=info.name)

    def _note_totals(self) -> None:
        """The rows of the cut lie in a snapshot: a drain need not write them again."""
        for cut in self._descriptor.rings:
            ring = self._session.rings.get(cut.name)
            if ring is not None and cut.arena in (None, ring.arena.identity):
                ring.cut_totals = [lane.total_count for lane in cut.lanes]

    def _is_committed_already(self) -> bool:
        """A predecessor died while committing: done where its manifest is there, else again."""
        if self._entry.snapshot[1] != SnapshotState.COMMITTING:
            return False
        info = find_committed(self._session.run_dir, self.name)
        if info is None:
            self._roll_back()
            return False
        self._settle(info, 0)
        return True

    def _roll_back(self) -> None:
        self._entry.move_snapshot(
            self._descriptor.sequence, SnapshotState.COMMITTING, SnapshotState.PENDING
        )

    def _check_cancelled(self) -> None:
        sequence, state = self._entry.snapshot
        alive = (SnapshotState.PENDING, SnapshotState.COMMITTING)
        if sequence != self._descriptor.sequence or state not in alive:
            raise CancelledError

    def _manifest(self, files: SnapshotFiles) -> Manifest:
        descriptor = self._descriptor
        return Manifest(
            run_id=self._session.run_id,
            generation=descriptor.generation,
            sequence=descriptor.sequence,
            line=descriptor.line,
            global_step=descriptor.global_step,
            created_at=descriptor.created_at,
            parent=self._session.control.parent,
            algorithm=descriptor.algorithm,
            versions=descriptor.versions,
            components=tuple(_with_files(c, files) for c in descriptor.components),
            files=tuple(files.records.values()),
            metrics=descriptor.metrics,
            evaluations=descriptor.evaluations,
            notes=descriptor.notes,
            level=descriptor.level,
            runtime=descriptor.runtime,
            milestone=descriptor.milestone,
        )

    def _fail(self, error: Exception) -> None:
        if self.committed is not None:
            # Pruning or the like; the snapshot stands.
            self._session.warn(f"after snapshot {self.name}: {error}")
            return
        sequence = self._descriptor.sequence
        error = self._explained(error)
        if self._entry.fail(sequence, error_record(error)):
            logger.error("snapshot %s failed: %s", self.name, error)
            self._session.tell("failed", sequence=sequence)
        else:
            self._session.tell("cancelled", sequence=sequence)

    def _explained(self, error: Exception) -> Exception:
        """Return what to tell of an error: a run that is gone from its path explains any file that
        was not found."""
        run_dir = self._session.run_dir
        if not isinstance(error, FileNotFoundError) or os.path.isdir(run_dir):
            return error
        return SnapshotFailedError(
            f"{run_dir} was moved or removed while this trainer owns it: no file of it is found "
            f"there ({error}). Snapshots succeed again once it is back; to use it where it is now, "
            "start the script with that path",
            sequence=self._descriptor.sequence,
        )


def error_record(error: Exception) -> dict[str, object]:
    """Return what the trainer makes its exception from: a type of pyengine.errors, and numbers."""
    name = type(error).__name__
    is_ours = isinstance(error, PyengineError) and hasattr(errors, name)
    record: dict[str, object] = {
        "type": name if is_ours else "SnapshotFailedError",
        "message": str(error) if is_ours else f"{name}: {error}",
    }
    if isinstance(error, NoSpaceError):
        record |= {"needed": error.needed_bytes, "free": error.free_bytes}
    if isinstance(error, StaleGenerationError):
        record["path"] = error.path
    return record


def _with_files(component: ComponentRecord, files: SnapshotFiles) -> ComponentRecord:
    """A ring's files are known to the writer alone; others came with theirs."""
    paths = files.ring_paths.get(component.name) if component.kind == "ring" else None
    if paths is None:
        return component
    size_bytes = sum(files.records[path].size_bytes for path in paths)
    return replace(component, files=tuple(paths), bytes=size_bytes)
