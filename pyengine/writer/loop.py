"""The writer's loop: wait for an event, let each part of the writer do its next step.

Events: a message, the trainer's death (pidfd; the end of the channel is the hint that it let go),
a sealed segment, a worker's end, a signal. Work goes in the order of what the trainer waits for:
segments, staged snapshots, then warming. How it ends:

    trainer dead or gone   drain: all that is staged and published, without a time limit
    close                  the same within the grace, then `drained`
    SIGTERM                what is staged and sealed within the grace; where the trainer dies in the
                           next moment too (a signal to the whole group) it becomes a drain
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Generator, Iterator
from enum import IntEnum

from pyengine import config
from pyengine.catalog.endings import Loss
from pyengine.errors import ClosedError
from pyengine.events import logger
from pyengine.shm.channel import Message
from pyengine.writer import pool
from pyengine.writer.drain import drain_steps, open_rows, seal_full_segments
from pyengine.writer.priority import Priority
from pyengine.writer.ring_view import RingView
from pyengine.writer.segments import SegmentWriter
from pyengine.writer.session import Session
from pyengine.writer.snapshot_queue import SnapshotQueue
from pyengine.writer.trainer import Trainer
from pyengine.writer.warm import warm_steps
from pyengine.writer.workers import Workers

_BEAT_SECONDS = 1.0


class Ending(IntEnum):
    """Why the writer is about to end; a later one includes the ones before."""

    NONE = 0
    TERMINATE = 1
    CLOSE = 2
    DRAIN = 3


class Loop:
    """Runs one session to its end. Owns nothing; main thread only."""

    def __init__(
        self,
        session: Session,
        workers: Workers,
        trainer: Trainer,
        priority: Priority,
        signal_fd: int,
    ) -> None:
        self._session = session
        self._workers = workers
        self._trainer = trainer
        self._priority = priority
        self._signal_fd = signal_fd
        self._segments = SegmentWriter(session, workers)
        self._queue = SnapshotQueue(session, self._segments, workers, self._receive)
        self._warm: list[tuple[RingView, Generator[None, None, None]]] = []
        self._drain: Iterator[None] | None = None
        self._ending = Ending.NONE
        self._deadline: float | None = None
        self._channel_open = True
        self._is_trainer_dead = False
        self._is_linger_over = False
        self._drain_again = False
        self._is_drained = False

    def run(self) -> bool:
        """Work until the end; whether every sealed segment and staged snapshot was dealt with."""
        while True:
            self._wait()
            self._receive()
            self._session.take_again()
            self._look_at_trainer()
            self._segments.step()
            self._queue.step()
            self._segments.start()
            if self._session.retired and self._queue.is_idle:
                self._session.close_retired(self._segments.rings_in_use)
            if self._ending == Ending.NONE:
                self._idle_steps()
            elif self._is_done():
                return not self._segments.has_unwritten and not self._session.undrained
            elif self._deadline is not None and time.monotonic() >= self._deadline:
                logger.error("the time to finish is over; leaving unfinished work behind")
                return False
            self._session.control.writer_heartbeat = time.monotonic_ns()

    def losses(self) -> Iterator[Loss]:
        """Yield the rows that would be lost by an end now."""
        yield from self._segments.losses()
        for ring in self._session.rings.values():
            why = self._session.undrained.get(ring.name)
            rows = sum(run.row_count for run in open_rows(ring))
            if rows and (why is not None or not self._is_drained):
                yield Loss(ring.name, rows, why or "they were not asked for before the end")

    def terminate(self) -> None:
        """What SIGTERM asks for."""
        if self._ending < Ending.TERMINATE:
            logger.info("asked to terminate")
            self._end(Ending.TERMINATE, config.TERMINATE_GRACE_SECONDS)

    def _wait(self) -> None:
        poller = select.poll()
        fds = [self._workers.event, self._signal_fd]
        fds += [ring.seal_event for ring in self._session.rings.values()]
        if self._channel_open:
            fds.append(self._session.channel.fileno())
        if not self._is_trainer_dead:
            fds.append(self._trainer.pidfd)
        for fd in fds:
            poller.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(int(self._timeout() * 1000))}
        self._workers.clear()
        for ring in self._session.rings.values():
            if ring.seal_event in ready:
                os.eventfd_read(ring.seal_event)
        if self._signal_fd in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._signal_fd, 4096)

    def _timeout(self) -> float:
        now = time.monotonic()
        times = [now + _BEAT_SECONDS]
        for moment in (self._segments.next_retry_at(), self._queue.next_look_at, self._deadline):
            if moment is not None:
                times.append(moment)
        return max(0.001, min(times) - now)

    def _receive(self) -> None:
        while self._channel_open:
            try:
                received = self._session.channel.receive(0)
            except ClosedError:
                self._channel_open = False
                logger.info("the trainer let go of the channel")
                self._end(Ending.DRAIN, None)
                return
            if received is None:
                return
            self._take(*received)

    def _take(self, message: Message, fds: list[int]) -> None:
        kind = message.get("kind")
        self._session.take(message, fds)
        if kind == "close":
            self._end(Ending.CLOSE, float(message["grace_seconds"]))
        elif kind == "warm":
            ring = self._session.rings.get(message["ring"])
            if ring is not None:
                self._warm.append((ring, warm_steps(self._session, self._workers, ring)))

    def _look_at_trainer(self) -> None:
        if self._is_trainer_dead or not self._trainer.is_dead():
            return
        logger.info("the trainer is dead")
        self._is_trainer_dead = True
        seal_full_segments(self._session)
        self._session.abandon_staging()
        self._drain_again = self._drain is not None
        self._end(Ending.DRAIN, None)

    def _end(self, ending: Ending, grace_seconds: float | None) -> None:
        if ending <= self._ending:
            return
        logger.info("ending: %s", ending.name.lower())
        if self._ending == Ending.NONE:
            self._priority.yield_to_nobody()
        self._ending = ending
        while self._warm:
            self._warm.pop()[1].close()
        self._deadline = None if grace_seconds is None else time.monotonic() + grace_seconds

    def _is_done(self) -> bool:
        """Go on with what has to be done before the end; whether that was all."""
        if self._ending == Ending.DRAIN and not self._channel_open:
            self._queue.fail_unreadable()
        if not self._queue.is_idle or not self._segments.is_idle:
            return False
        if self._ending != Ending.CLOSE and not self._has_lingered():
            return False
        if self._ending == Ending.TERMINATE:
            return True
        if self._drain is None:
            self._drain = drain_steps(self._session, self._workers)
        if next(self._drain, self) is not self:
            return False
        if self._drain_again:
            # More rows may have come between the drain of a `close` and the trainer's death.
            self._drain_again = False
            self._drain = drain_steps(self._session, self._workers)
            self._is_drained = next(self._drain, self) is self
        else:
            self._is_drained = True
        return self._is_drained

    def _has_lingered(self) -> bool:
        """Nothing is left: see for a moment whether the trainer is dying. False: look again.

        A signal to the whole group reaches the writer first, and a dying process loses its sockets
        before its pidfd tells of its end.
        """
        if not self._is_trainer_dead and not self._is_linger_over:
            self._is_linger_over = True
            return not self._trainer.wait(config.TERMINATE_LINGER_SECONDS)
        return True

    def _idle_steps(self) -> None:
        if not self._queue.is_idle or not self._segments.is_idle:
            return
        pool.sweep_when_worth(self._session)
        while self._warm:
            ring, steps = self._warm[0]
            # A restore may have put another ring in its place.
            if ring in self._session.rings.values() and next(steps, self) is not self:
                return
            steps.close()
            self._warm.pop(0)
