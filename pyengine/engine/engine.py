"""SnapshotEngine: the whole training state, frozen at one instant and put back.

The facade checks who may do what and when, decides by the trigger, and leaves the work to the
session (claim, writer, memory), the cutter (what goes into a snapshot) and restore.
"""

from __future__ import annotations

import atexit
import operator
import os
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from pyengine import config, errors
from pyengine.catalog import scan
from pyengine.engine.critical import is_in_signal_handler, run_whole
from pyengine.engine.describe import Identity, check_metrics
from pyengine.engine.owner import RingOwner
from pyengine.engine.pending import PendingSnapshot
from pyengine.engine.report import RestoreReport
from pyengine.engine.restore import Replay, RestoreOptions, restore_snapshot, start_fresh
from pyengine.engine.session import Session
from pyengine.engine.taker import Taker
from pyengine.engine.tracked import Tracked
from pyengine.engine.trigger import Trigger
from pyengine.events import logger
from pyengine.format.manifest import check_notes
from pyengine.fs.forking import register_for_child

if TYPE_CHECKING:
    from pyengine.catalog.info import SnapshotInfo

_EXIT_SECONDS = 30.0


class SnapshotEngine:
    """Owns a run directory and takes snapshots of everything that is tracked.

    `every_steps` and `every_seconds` say when `tick` takes one (whichever comes first; neither:
    only `snapshot` does); `budget` is the largest share of time that snapshots may cost (None: no
    limit), `keep_last` how many stay. When both staging slots are in use, `when_busy` leaves the
    snapshot out ("skip") or waits ("wait"). A snapshot that the writer could not make durable is
    raised at the next call, or logged, by `on_error`. `fresh=True` begins anew in a directory that
    holds snapshots; `strict=True` makes a ring that will not fit into memory an error at `track`;
    `track_rng=False` leaves the process's random generators out. `algorithm` and `notes` (plain
    JSON values) go into every manifest.

    The constructor claims the directory and starts the writer process. It waits up to `drain_wait`
    seconds for the writer of a dead trainer to finish. Raises RunBusyError, RunDirectoryError,
    ConfigError, SharedMemoryError.

    A context manager; `close()` ends it, and so does the end of the program. One thread at a time
    may call `tick`, `snapshot` and `restore`, with the learner at rest. In a forked child the
    engine is inert: its methods raise ForkedProcessError, `close()` does nothing.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep_last: int = 3,
        budget: float | None = 0.1,
        when_busy: Literal["skip", "wait"] = "skip",
        on_error: Literal["raise", "warn"] = "raise",
        fresh: bool = False,
        strict: bool = False,
        track_rng: bool = True,
        algorithm: str | None = None,
        notes: Mapping[str, Any] | None = None,
        drain_wait: float = config.DRAIN_WAIT_SECONDS,
    ) -> None:
        _check_choice("when_busy", when_busy, ("skip", "wait"))
        _check_choice("on_error", on_error, ("raise", "warn"))
        if keep_last < 1:
            raise errors.ConfigError(f"keep_last={keep_last} must be at least 1")
        identity = Identity(algorithm, dict(notes or {}))
        check_notes(identity.notes)
        trigger = Trigger(every_steps=every_steps, every_seconds=every_seconds, budget=budget)
        self._on_error = on_error
        self._strict = strict
        self._fresh = fresh
        self._tracked = Tracked(track_rng=track_rng)
        self._owner = RingOwner(self)
        self._lock = threading.Lock()
        self._inside: int | None = None
        self._is_poisoned = False
        self._owner_pid = os.getpid()
        self._session: Session | None = None
        session = Session(os.fspath(run_dir), keep_last=keep_last, drain_wait=drain_wait)
        try:
            self._taker = Taker(
                session,
                self._tracked,
                trigger,
                identity,
                waits=when_busy == "wait",
                raises=on_error == "raise",
            )
            self._has_snapshots = bool(scan.committed_names(session.run_dir))
            register_for_child(self)
            self._exit_hook = _close_at_exit(self)
        except BaseException:
            session.abandon()
            raise
        self._session = session

    def track(self, **objects: Any) -> SnapshotEngine:
        """Save these objects under these names, and restore them in place.

        Modules, optimizers, schedulers, scalers, generators, tensors and arrays, dicts, lists and
        dataclasses of plain values, EnvironmentState, ReplayBuffer, and anything with
        get_state/set_state or state_dict/load_state_dict. Returns the engine. Raises ConfigError
        for a name in use, UntrackableError for an object that cannot be restored in place,
        RingInUseError for a ring that another engine tracks; nothing was added then.
        """
        session = self._live()
        components, rings = self._tracked.build(objects)
        bound: list[Any] = []
        try:
            for name, ring in rings.items():
                ring.bind(self._owner, name, line=session.control.line, strict=self._strict)
                bound.append(ring)
        except BaseException:
            for ring in bound:
                ring.unbind(self._owner)
            raise
        self._tracked.components.update(components)
        self._tracked.rings.update(rings)
        return self

    def exclude(self, name: str, reason: str) -> None:
        """Leave something out visibly: snapshots and restore reports list it with the reason."""
        self._live()
        self._tracked.exclude(name, reason)

    def declare_static(self, *names: str) -> None:
        """Declare that tracked components need not change, so that nothing warns of it."""
        self._live()
        self._tracked.declare_static(names)

    def tick(self, step: int) -> PendingSnapshot | None:
        """Take a snapshot if one is due; call it as the last statement of a step.

        The snapshot holds the state with which step + 1 begins; everything is copied when this
        returns. Returns the snapshot that was started, else None. Raises the error of an earlier
        snapshot (see `on_error`), UnrestoredRunError, PoisonedEngineError, and what capturing
        raises: CaptureError, SharedMemoryError, errors of tracked objects.
        """
        session = self._live()
        if self._inside == threading.get_ident():
            return None
        step = operator.index(step)
        with self._turn():
            self._check_started(session)
            return self._taker.tick(step)

    def snapshot(self, step: int, metrics: Mapping[str, float] | None = None) -> PendingSnapshot:
        """Take a snapshot now, as the one of `step`; `metrics` go into its manifest.

        Waits up to 30 s for a staging slot, then raises SnapshotBusyError. Asked for in a signal
        handler, where the learner may be in the middle of a step, it is a wish for the next tick.
        Raises as `tick` does.
        """
        session = self._live()
        step = operator.index(step)
        checked = check_metrics(metrics or {})
        if self._inside == threading.get_ident() or is_in_signal_handler():
            return self._taker.wish()
        with self._turn():
            self._check_started(session)
            return self._taker.snapshot(step, checked)

    def restore(
        self,
        *,
        eager: bool = False,
        replay: Replay = "exact",
        replay_last: int | None = None,
        allow: Collection[str] = (),
    ) -> RestoreReport:
        """Put the newest committed snapshot back into the tracked objects; always a report.

        On a run without snapshots, and with `fresh=True`, the report is false and `next_step` 0.
        Replay rows come back lazily: full segments are mapped files, read and verified when they
        are touched; `eager=True` reads and verifies them now. `replay="skip"` leaves rings empty,
        `replay_last=N` takes the newest N rows only. `allow` names components that may be missing
        on either side.

        Nothing live changes before everything was read, verified and compared. Raises
        ComponentMismatchError, StateMismatchError, DamageError, FormatVersionError, OSError: live
        objects are unchanged then. An exception while they are being changed comes through as it
        is; the engine refuses to go on until a restore succeeds (PoisonedEngineError).
        """
        session = self._live()
        _check_choice("replay", replay, ("exact", "skip"))
        replay_last = None if replay_last is None else operator.index(replay_last)
        if replay_last is not None and replay_last < 0:
            raise errors.ConfigError(f"replay_last={replay_last} must not be negative")
        options = RestoreOptions(eager, replay, replay_last, tuple(allow))
        with self._turn():
            if session.has_pending:
                raise errors.RestoreError("a snapshot is pending: wait for it, then restore")
            info = None if self._fresh else scan.newest_restorable(session.run_dir)
            if info is None:
                report = start_fresh(session, self._tracked)
            else:
                report = self._restore(session, info, options)
            session.link.await_ready(config.WRITER_START_SECONDS)
            self._has_snapshots = False
            lazy = () if eager or not report.rows else self._tracked.rings
            self._taker.start(max(0, report.next_step - 1), lazy_rings=lazy)
        if report:
            logger.info("%s", report)
        return report

    def _restore(
        self, session: Session, info: SnapshotInfo, options: RestoreOptions
    ) -> RestoreReport:
        def applying(is_applying: bool) -> None:
            self._is_poisoned = is_applying

        return restore_snapshot(session, self._tracked, info, options, applying)

    def close(
        self, final: int | None = None, *, timeout: float = config.CLOSE_WAIT_SECONDS
    ) -> None:
        """Wait for pending snapshots, let the writer finish, and let go of the run. Idempotent.

        `final=step` takes one more snapshot first. After `timeout` seconds a writer that is still
        at work is left to finish by itself, with a warning. Raises the error of a snapshot that
        did not come about (see `on_error`); the engine is closed nevertheless.
        """
        session = self._session
        if session is None or self._owner_pid != os.getpid():
            return
        failed: list[errors.PyengineError] = []
        try:
            if final is not None:
                self.snapshot(final)
            self._look_after_writer()
            failed += session.drain(timeout).errors
        finally:
            run_whole(lambda: self._let_go(session))
        for error in failed[1:] if self._on_error == "raise" else failed:
            logger.warning("%s", error)
        if failed and self._on_error == "raise":
            raise failed[0]

    def _let_go(self, session: Session) -> None:
        self._session = None
        atexit.unregister(self._exit_hook)
        for ring in self._tracked.rings.values():
            ring.unbind(self._owner)
        self._taker.close()
        session.release()

    def __enter__(self) -> SnapshotEngine:
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
        try:
            self.close(timeout=_EXIT_SECONDS)
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
        if self._is_poisoned:
            raise errors.PoisonedEngineError(
                f"{session.run_dir}: a restore was interrupted half-way; live objects are neither "
                "the old nor the saved state. Call restore() again",
                path=session.run_dir,
            )
        if self._has_snapshots and not self._fresh:
            raise errors.UnrestoredRunError(
                f"{session.run_dir} holds snapshots and none was restored: call restore() first, "
                "or pass fresh=True to begin anew beside them",
                path=session.run_dir,
            )
        if not session.is_line_open:
            start_fresh(session, self._tracked)
            session.link.await_ready(config.WRITER_START_SECONDS)

    def _look_after_writer(self) -> None:
        """Hand over what the writer lacks, take in its news, replace it when it died."""
        if self._session is not None:
            self._taker.look_after_writer()

    def _cancel_pending(self, reason: str) -> int:
        session = self._session
        return session.cancel_pending(reason) if session is not None else 0

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let one thread at a time in, and remember which, so that a handler in it is known."""
        with self._lock:
            self._inside = threading.get_ident()
            try:
                yield
            finally:
                self._inside = None

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._inside = None
        atexit.unregister(self._exit_hook)


def _close_at_exit(engine: SnapshotEngine) -> Any:
    """Register a close at the end of the program that does not keep the engine alive."""
    reference = weakref.ref(engine)

    def hook() -> None:
        found = reference()
        if found is None:
            return
        try:
            found.close(timeout=_EXIT_SECONDS)
        except errors.PyengineError as error:
            logger.warning("%s", error)

    return atexit.register(hook)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise errors.ConfigError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}")
