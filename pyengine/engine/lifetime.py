"""An engine from its claim to its close: who may use it when, and how it ends.

Base of SnapshotEngine, which makes everything that is let go of here. Whatever the end is (close,
an exception, the end of the program, the garbage collector), it is the same few steps, each of
which happens whatever the others raise. A forked child's copy is inert.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import NoReturn, TypeVar

from pyengine import config, errors
from pyengine.catalog import quarantine, scan
from pyengine.engine import settings
from pyengine.engine.at_exit import EXIT_SECONDS
from pyengine.engine.critical import is_in_signal_handler, run_whole
from pyengine.engine.owner import RingOwner
from pyengine.engine.restore import start_fresh
from pyengine.engine.session import Session
from pyengine.engine.stopping import StopSignals
from pyengine.engine.taker import Taker
from pyengine.engine.tracked import Tracked
from pyengine.events import logger
from pyengine.shm.lifeline import Lifeline

_EngineT = TypeVar("_EngineT", bound="Lifetime")


class Lifetime:
    """What an engine owns, until `close`. `_session` is None before the claim and after the end."""

    _session: Session | None
    _owner_pid: int
    _taker: Taker
    _tracked: Tracked
    _owner: RingOwner
    _stop: StopSignals
    _lifeline: Lifeline | None
    _exit_hook: Callable[[], None]
    _on_error: str
    _fresh: bool
    _has_snapshots: bool | None
    """Whether the run held any before this engine took one; None: nobody has looked."""
    _is_poisoned: bool

    def close(
        self, final: int | None = None, *, timeout: float = config.CLOSE_WAIT_SECONDS
    ) -> None:
        """Wait for pending snapshots, let the writer finish, and let go of the run. Idempotent.

        `final=step` takes one more snapshot first, whatever became of earlier ones, unless the run
        was restored at that step and nothing was asked for since. After `timeout`
        seconds a writer that is still at work is left to finish by itself, with a warning. Then
        raises the error of a snapshot that did not come about (see `on_error`), or what taking the
        final one raised; the engine is closed nevertheless. NestedCallError, with nothing changed,
        within a tick, snapshot or restore of the same thread; ClosedError for a final snapshot of
        an engine that is closed.
        """
        session = self._session
        if self._owner_pid != os.getpid():
            return
        if session is None:
            if final is not None:
                raise errors.ClosedError(
                    f"no final snapshot of step {final}: the engine was closed before"
                )
            return
        if not is_in_signal_handler():
            self._refuse_nested(session)
        timeout = settings.check_seconds("timeout", timeout, may_be_zero=True)
        final = None if final is None else settings.check_count("final", final, low=0)
        failed: list[errors.PyengineError] = []
        others: list[Exception] = []
        try:
            if final is not None:
                with _noting(others):
                    self._take_final(session, final, failed)
            with _noting(others):
                session.buffers.finish_late()
                self._look_after_writer()
            failed += session.drain(timeout)
        finally:
            run_whole(lambda: self._let_go(session), even_if_interrupted=True)
        raised = [*(failed if self._on_error == "raise" else []), *others][:1]
        for error in (*failed, *others):
            if error not in raised:
                logger.warning("%s", error)
        if raised:
            raise raised[0]

    def _take_final(self, session: Session, step: int, failed: list[errors.PyengineError]) -> None:
        """Take the last snapshot; the errors of earlier ones are noted in `failed`."""
        if session.is_this_threads_turn() or is_in_signal_handler():
            raise errors.SnapshotError(
                f"no final snapshot of step {step}: the engine was closed in a signal handler, "
                "where the learner may be in the middle of a step"
            )
        with self._turn(session):
            self._check_started(session)
            if not self._taker.is_as_restored(step):
                self._taker.snapshot(step, {}, failed)

    def _let_go(self, session: Session) -> None:
        self._session = None
        self._stop.uninstall()
        # The last one first, and every one of them whatever the others raise.
        with ExitStack() as steps:
            steps.callback(session.release)
            steps.callback(self._taker.close)
            steps.callback(self._tracked.stop_watching)
            for ring in self._tracked.rings.values():
                steps.callback(ring.unbind, self._owner)
            steps.callback(atexit.unregister, self._exit_hook)

    def __repr__(self) -> str:
        if self._session is None or self._owner_pid != os.getpid():
            return "SnapshotEngine(closed)"
        names = ", ".join(sorted(self._tracked.names))
        run_dir, generation = self._session.run_dir, self._session.claim.generation
        return f"SnapshotEngine({run_dir!r}, generation {generation}, tracks {names})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("an engine cannot be copied or pickled: it owns a run directory")

    def __enter__(self: _EngineT) -> _EngineT:
        self._live()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if value is None:
            self.close()
            return
        if self._lifeline is not None:
            self._lifeline.report(value)
        try:
            self.close(timeout=EXIT_SECONDS)
        except errors.PyengineError as error:
            logger.warning("while closing after %s: %s", type(value).__name__, error)

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None and self._owner_pid == os.getpid():
            logger.warning("an engine was not closed; its writer finishes by itself")
            self._let_go(session)

    @property
    def run_dir(self) -> str:
        """The run directory, absolute."""
        return self._live().run_dir

    @property
    def generation(self) -> int:
        """The number of this engine's claim on the run."""
        return self._live().claim.generation

    @property
    def writer_pid(self) -> int | None:
        """Process id of the writer; None while there is none."""
        return self._live().link.pid

    def _live(self) -> Session:
        """Return the session, or raise: in a forked child, and after the end."""
        if self._owner_pid != os.getpid():
            raise errors.ForkedProcessError(
                "this engine belongs to the process that forked this one; only that may use it"
            )
        if self._session is None:
            raise errors.ClosedError("the engine was closed")
        return self._session

    def _check_started(self, session: Session) -> None:
        """Raise where training must not go on; open the line of a run that begins."""
        self._check_restored(session)
        if not session.is_line_open:
            start_fresh(session, self._tracked)

    def _check_restored(self, session: Session) -> None:
        """Raise where a restore is owed."""
        if self._is_poisoned:
            raise errors.PoisonedEngineError(
                f"{session.run_dir}: a restore was interrupted half-way; live objects are neither "
                "the old nor the saved state. Call restore() again",
                path=session.run_dir,
            )
        if not self._fresh and self._held_snapshots(session):
            raise errors.UnrestoredRunError(
                f"{session.run_dir} holds snapshots and none was restored: call restore() first, "
                "or make the engine with SnapshotEngine(..., fresh=True) to begin anew beside them",
                path=session.run_dir,
            )

    def _held_snapshots(self, session: Session) -> bool:
        """Look once, and not in the constructor: what proves lost ones takes a look at each start
        that the run has had."""
        if self._has_snapshots is None:
            run_dir = session.run_dir
            committed = scan.committed_names(run_dir)
            self._has_snapshots = bool(committed or quarantine.lost_snapshots(run_dir))
        return self._has_snapshots

    def _applying(self, is_applying: bool) -> None:
        self._is_poisoned = is_applying

    def _look_after_writer(self) -> None:
        """Hand over what the writer lacks, take in its news, replace it when it died."""
        if self._session is not None:
            self._taker.look_after_writer()

    def _cancel_pending(self, reason: str) -> int:
        session = self._session
        return session.cancel_pending(reason) if session is not None else 0

    def _committing(self) -> tuple[str, ...]:
        session = self._session
        return session.committing() if session is not None else ()

    def _turn(self, session: Session) -> AbstractContextManager[bool]:
        """Return the lock that lets one thread at a time in, once."""
        self._refuse_nested(session)
        # The lock itself, which no interrupt can leave held: a block of ours around it might be.
        return session.turn

    def _refuse_nested(self, session: Session) -> None:
        if session.is_this_threads_turn():
            raise errors.NestedCallError(
                "this thread is in a tick, snapshot or restore of the same engine: only tick and "
                "snapshot may be called there, and take nothing before the next tick"
            )

    def _after_fork_in_child(self) -> None:
        atexit.unregister(self._exit_hook)


@contextmanager
def _noting(into: list[Exception]) -> Iterator[None]:
    """Go on after an exception: what comes next must happen whatever the user's code did."""
    try:
        yield
    except Exception as error:  # the caller raises it once everything was let go of
        into.append(error)
