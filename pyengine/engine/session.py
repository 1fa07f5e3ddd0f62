"""Everything that an engine holds on to while it owns a run: one place that opens and closes it.

In order: the claim on the run directory (a lock that the kernel frees), the control block, the
writer, the staging arenas. Closing goes the other way round. Both happen where no signal handler
can interrupt them, so that an interrupt leaves either everything or nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyengine import config
from pyengine.catalog.claim import Claim, claim_run
from pyengine.engine.buffers import StagingBuffers
from pyengine.engine.critical import run_whole
from pyengine.engine.link import WriterLink
from pyengine.engine.pending import PendingSnapshot
from pyengine.errors import (
    ClosedError,
    NoSpaceError,
    PyengineError,
    SnapshotFailedError,
    StaleGenerationError,
    WriterDiedError,
)
from pyengine.events import logger
from pyengine.format import names
from pyengine.fs.process import read_status
from pyengine.shm.arena import Arena
from pyengine.shm.channel import Message
from pyengine.shm.control import CONTROL_BYTES, EngineControl
from pyengine.shm.states import SnapshotState, StagingState

if TYPE_CHECKING:
    from pyengine.catalog.info import SnapshotInfo
    from pyengine.replay.ring import ReplayBuffer
    from pyengine.replay.storage import Storage


class Session:
    """One claim on a run and what works under it; owns all of it. Inert in a forked child.

    `on_done` is told of each snapshot once its fate is known. Empty until `open`, which an
    interrupt may end at any moment: `abandon` then lets go of whatever was opened. `claim`,
    `run_dir`, `control`, `link` and `buffers` are there once it has returned.
    """

    def __init__(self, on_done: Callable[[PendingSnapshot], None] | None = None) -> None:
        self._on_done = on_done
        self._link: WriterLink | None = None
        self._owner_pid = os.getpid()
        self._resources = contextlib.ExitStack()
        self._pending: list[PendingSnapshot] = []
        self._given: dict[str, weakref.ref[Storage]] = {}
        self._giving = threading.Lock()
        self._sequence = 0
        self.persist_seconds: float | None = None
        """How long the writer took for the snapshot it committed last."""
        self.taken_over: StaleGenerationError | None = None
        """How the writer learned that a newer generation owns the run; nothing changes that."""
        self.is_line_open = False
        self.turn = threading.RLock()
        """Held during a tick, a snapshot and a restore. Who holds it is known by the lock alone: a
        note beside it would stay behind where an interrupt comes at the wrong moment."""

    def open(
        self,
        run_dir: str,
        *,
        keep_last: int,
        keep_best: str | None,
        keep_best_mode: str,
        drain_wait: float,
        takeover: bool,
    ) -> None:
        """Claim the run and start the writer; raises as `claim_run` and Arena.create do."""
        stop = threading.Event()
        retention = {
            "keep_last": keep_last,
            "keep_best": keep_best,
            "keep_best_mode": keep_best_mode,
        }

        def claim() -> Claim:
            return claim_run(run_dir, wait_seconds=drain_wait, takeover=takeover, stop=stop)

        run_whole(lambda: self._open(claim, retention), stop)

    def __del__(self) -> None:
        if getattr(self, "_owner_pid", None) == os.getpid() and hasattr(self, "_pending"):
            self.release()

    def _open(self, claim: Callable[[], Claim], retention: dict[str, Any]) -> None:
        stack = self._resources
        self.claim = claim()
        stack.callback(self.claim.release)
        self.run_dir = self.claim.run_dir
        arena = stack.enter_context(Arena.create(CONTROL_BYTES, "control"))
        self.control = EngineControl.create(
            arena, generation=self.claim.generation, run_id=self.claim.run_id
        )
        stack.callback(self.control.release)
        hello = {"run_dir": self.run_dir, "generation": self.claim.generation, **retention}
        self.link = self._link = WriterLink(hello, arena, _on_message)
        self.buffers = StagingBuffers(self.control, self.link.give_staging)
        stack.callback(self.buffers.close)

    def is_this_threads_turn(self) -> bool:
        """Whether the calling thread is in a tick, a snapshot or a restore."""
        # No public name says it; threading.Condition relies on this one.
        return bool(self.turn._is_owned())  # type: ignore[attr-defined]

    def next_sequence(self) -> int:
        """Return a number that no snapshot of this generation had."""
        self._sequence += 1
        return self._sequence

    def add_pending(self, pending: PendingSnapshot) -> None:
        """Keep an eye on a snapshot that was just published."""
        self._pending.append(pending)

    def record_fates(self) -> None:
        """Note what became of snapshots so far, before a claimed entry speaks of the next one.

        The writer may have committed one and freed its entry since anybody looked.
        """
        for pending in self._pending:
            pending.settle()

    def settle(self) -> list[PendingSnapshot]:
        """Take over decided snapshots; return them. Later ones stay under observation."""
        done = [pending for pending in self._pending if pending.is_done]
        self._pending = [pending for pending in self._pending if pending not in done]
        for pending in done:
            if pending.outcome is not None and not pending.weights_only:
                self.persist_seconds = pending.outcome.persist_ns / 1e9
            if isinstance(pending.error, StaleGenerationError):
                self.taken_over = pending.error
            if self._on_done is not None:
                self._on_done(pending)
        return done

    @property
    def has_pending(self) -> bool:
        """Whether a snapshot is on its way."""
        return any(not pending.is_done for pending in self._pending)

    def cancel_pending(self, reason: str) -> int:
        """Give up the snapshots that are still pending; return how many were."""
        count = 0
        for entry in self.control.entries:
            sequence, state = entry.snapshot
            if state == SnapshotState.PENDING and entry.cancel(sequence):
                logger.warning("snapshot %d is given up: %s", sequence, reason)
                count += 1
        if count:
            self.buffers.stop_late()
            self.link.wake()
        return count

    def committing(self) -> tuple[str, ...]:
        """Return the snapshots that are being committed: too late to cancel, not yet decided."""
        return tuple(
            f"snapshot {sequence}"
            for sequence, state in (entry.snapshot for entry in self.control.entries)
            if state == SnapshotState.COMMITTING
        )

    def give_ring(self, name: str, ring: ReplayBuffer) -> None:
        """Hand a ring's memory to the writer, once it has any, and when a restore replaced it.

        Any thread: one that adds rows and waits for a slot does it as well as one that ticks.
        """
        if self._is_to_give(name, ring.storage):
            run_whole(lambda: self._give_ring(name, ring))

    def _is_to_give(self, name: str, storage: Storage | None) -> bool:
        given = self._given.get(name)
        return storage is not None and (given is None or given() is not storage)

    def _give_ring(self, name: str, ring: ReplayBuffer) -> None:
        # Twice would make two views of one ring in the writer, each of which takes back what the
        # other is writing.
        with self._giving:
            storage = ring.storage
            if storage is None or not self._is_to_give(name, storage):
                return
            try:
                schema = ring.schema.to_record()
                self.link.give_ring(name, storage.arena, storage.seal_event, schema=schema)
            except (ClosedError, OSError):
                if storage is ring.storage:
                    raise
                return  # a restore has exchanged it meanwhile: its successor is given next time
            self._given[name] = weakref.ref(storage)

    def poll(self) -> None:
        """Take in news from the writer and replace it when it died.

        Raises WriterDiedError when it is given up; snapshots that were pending have FAILED then.
        """
        try:
            self.link.poll()
        except WriterDiedError as error:
            self._fail_pending(error)
            raise

    def wait(self, seconds: float) -> None:
        """Wait for news from the writer, at most `seconds`, and take them in.

        What is still to be copied of a snapshot is copied first.
        """
        self.buffers.finish_late()
        self._settle_lost()
        if self.link.is_lost:
            return
        try:
            self.link.wait(seconds)
        except WriterDiedError as error:
            self._fail_pending(error)

    def read_info(self, name: str) -> SnapshotInfo:
        """Return the record of a committed snapshot."""
        from pyengine.catalog.scan import read_snapshot

        return read_snapshot(self.run_dir, name)

    def _settle_lost(self) -> None:
        """An interrupt may have come in place of the error that said the writer was given up."""
        if self.link.is_lost:
            self._fail_pending(WriterDiedError("the writer kept dying and was given up"))

    def _fail_pending(self, error: WriterDiedError) -> None:
        """Decide what a writer that is given up has left undecided, and take the slots back."""
        pending_names = {pending.sequence: pending.name for pending in self._pending}
        for entry in self.control.entries:
            sequence, state = entry.snapshot
            name = pending_names.get(sequence)
            is_committing = state == SnapshotState.COMMITTING and name is not None
            if is_committing and self._is_committed(str(name)):
                entry.move_snapshot(sequence, state, SnapshotState.COMMITTED)
            elif state in (SnapshotState.PENDING, SnapshotState.COMMITTING):
                entry.fail(sequence, {"type": "WriterDiedError", "message": str(error)})
            for used in (StagingState.STAGED, StagingState.WRITING):
                entry.move_staging(sequence, used, StagingState.FREE)

    def _is_committed(self, name: str) -> bool:
        from pyengine.catalog.commit import find_committed

        try:
            return find_committed(self.run_dir, name) is not None
        except (OSError, NoSpaceError) as error:
            logger.warning("snapshot %s cannot be made durable: %s", name, error)
            return False

    def drain(self, seconds: float) -> list[PyengineError]:
        """Wait for pending snapshots, then for the writer to finish and end, `seconds` in all.

        Returns the errors of snapshots that did not come about; warns of an end that is not
        complete.
        """
        deadline = time.monotonic() + seconds
        while self.has_pending and time.monotonic() < deadline:
            if self.link.is_lost:
                break
            self.wait(min(1.0, max(0.0, deadline - time.monotonic())))
        if not self.link.is_lost:
            grace = max(1.0, deadline - time.monotonic())
            self.link.drain(max(grace, config.DRAIN_WAIT_SECONDS))
            self._warn_of_end(self.link.join(grace), seconds)
        self._settle_lost()
        errors = [pending.take_error() for pending in self.settle()]
        for pending in self._pending:
            text = (
                f"snapshot {pending.name} was still pending when the engine closed, after "
                f"{seconds:.1f} s: {pending.progress}; {self.describe_writer()}"
            )
            errors.append(SnapshotFailedError(text, sequence=pending.sequence))
        return [error for error in errors if error is not None]

    def _warn_of_end(self, has_ended: bool, seconds: float) -> None:
        log = os.path.join(
            self.run_dir, names.GENERATIONS, names.generation_log_name(self.claim.generation)
        )
        if not has_ended:
            logger.warning(
                "the writer has not finished after %.1f s; it goes on alone and ends by itself: %s",
                seconds,
                self.describe_writer(),
            )
        elif not self.link.is_complete:
            logger.warning(
                "the writer ended before every row was on disk; committed snapshots are whole. Its "
                "log says why: %s",
                log,
            )

    def describe_writer(self) -> str:
        """Return what the writer is doing, for messages to people."""
        pid = self.link.pid
        if pid is None:
            return "there is no writer"
        status = read_status(pid)
        if status is None or status.is_dead:
            return f"the writer (pid {pid}) has ended"
        if status.is_stopped:
            return f"the writer (pid {pid}) is stopped, by a signal or a debugger"
        if not self.link.is_ready:
            return f"the writer (pid {pid}) is still starting"
        idle_seconds = (time.monotonic_ns() - self.control.writer_heartbeat) / 1e9
        return f"the writer (pid {pid}) took its last step {idle_seconds:.1f} s ago"

    def release(self) -> None:
        """Let go of everything. Idempotent; what the writer still needs, it holds itself."""
        # The last one first, and every one of them whatever the others raise.
        with contextlib.ExitStack() as steps:
            steps.callback(self._resources.close)
            if self._link is not None:
                steps.callback(self._link.release)
            for pending in self._pending:
                steps.callback(pending.detach)

    def abandon(self) -> None:
        """Let go after a failed start: the writer, which holds nothing yet, is ended as well."""
        with contextlib.ExitStack() as steps:
            steps.callback(self._resources.close)
            if self._link is not None:
                steps.callback(self._link.kill)


def _on_message(message: Message) -> None:
    # Not a method: the link would hold the session, and neither could go without the collector.
    if message.get("kind") == "warning":
        logger.warning("%s", message.get("text"))
