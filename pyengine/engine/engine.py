"""SnapshotEngine: the whole training state, frozen at one instant and put back.

The facade checks who may do what and when, decides by the trigger, and leaves the work to the
session (claim, writer, memory), the cutter (what goes into a snapshot) and restore.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Literal

from pyengine import config, errors
from pyengine.engine import settings
from pyengine.engine.at_exit import close_at_exit
from pyengine.engine.critical import is_in_signal_handler, run_whole
from pyengine.engine.describe import Metrics, check_metrics
from pyengine.engine.evaluations import Evaluations
from pyengine.engine.fall_back import restore_newest
from pyengine.engine.options import EngineOptions
from pyengine.engine.owner import RingOwner
from pyengine.engine.pending import PendingSnapshot
from pyengine.engine.population import Population
from pyengine.engine.recording import Recording
from pyengine.engine.report import RestoreReport
from pyengine.engine.restore import Replay, RestoreOptions, Sanity, start_fresh
from pyengine.engine.runtime import runtime
from pyengine.engine.scalars import Scalars
from pyengine.engine.session import Session
from pyengine.engine.stopping import STOP_SIGNALS, StopSignals, installed, stopped
from pyengine.engine.supervised import lifeline_of_process, tell_supervisor
from pyengine.engine.taker import Taker
from pyengine.engine.tracked import Tracked
from pyengine.engine.tracking import Tracking
from pyengine.events import logger
from pyengine.fs.forking import register_for_child
from pyengine.fs.mounts import is_remote


class SnapshotEngine(Tracking, Recording, Population):
    """Owns a run directory and takes snapshots of everything that is tracked.

    `every_steps` and `every_seconds` say when `tick` takes one (whichever comes first; neither:
    only `snapshot` does); `budget` is the largest share of time that snapshots may cost (None: no
    limit), `keep_last` how many stay; with `keep_best` the one with the highest value of that
    metric stays too (with `keep_best_mode="min"` the lowest). A milestone is taken every
    `milestone_every` steps, of weights alone or with `milestones="full"` of everything, and is
    never pruned. When both staging slots are in use, `when_busy` leaves the snapshot out
    ("skip") or waits ("wait"). A snapshot that the writer could not make durable is raised at the
    next call, or logged, by `on_error` (StaleGenerationError is always raised); one that was given
    up so that training could go on is logged, and an error only for who waits for it. `on_damage`
    says what becomes of rows whose block of a mapped segment file turns out to be damaged when it
    is first touched: an error each time ("raise"), or they leave the ring, loudly, and the run goes
    on without them ("drop"; see `ReplayBuffer.dropped`). `fresh=True` begins anew in a directory
    that holds snapshots; `strict=True` makes a ring that will not fit into memory an error at
    `track`; `track_rng=False` leaves the process's random generators out. `algorithm` and `notes`
    (plain JSON values) go into every manifest.

    `overlap=True` copies the large tensors that tracked optimizers own (parameters in their groups,
    and their state, on the CPU) after `tick` has returned, beside the next forward and backward
    pass; a hook on each optimizer (taken off by `close`) finishes that before its step. Everything
    else is copied in the tick. Between a tick and that step nothing else may change these tensors,
    or `finish_staging` comes first: what in-place operations and `load_state_dict` change is
    noticed, and that snapshot fails with ChangedWhileStagedError, by `on_error`. Writes through
    `.data` and fused steps of untracked optimizers are not noticed; `debug_staging=True` finds
    them: it hashes each value before and after its copy, and finds learners that were not at rest
    in a tick too, which `tick` then raises. Their memory must not be resized meanwhile.

    The constructor claims the directory and starts the writer process. It waits up to `drain_wait`
    seconds for the writer of a dead trainer to finish. `takeover=True` claims the run of a trainer
    that still lives (it hangs, say) too: that one can commit nothing any more, and learns it by
    StaleGenerationError; its files stay. Raises RunBusyError, RunDirectoryError, ConfigError,
    SharedMemoryError, and OSError where the directory cannot be made or written to.

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
        keep_best: str | None = None,
        keep_best_mode: Literal["max", "min"] = "max",
        milestone_every: int | None = None,
        milestones: Literal["weights", "full"] = "weights",
        budget: float | None = 0.1,
        when_busy: Literal["skip", "wait"] = "skip",
        on_error: Literal["raise", "warn"] = "raise",
        on_damage: Literal["raise", "drop"] = "raise",
        fresh: bool = False,
        strict: bool = False,
        track_rng: bool = True,
        overlap: bool = False,
        debug_staging: bool = False,
        algorithm: str | None = None,
        notes: Mapping[str, Any] | None = None,
        drain_wait: float = config.DRAIN_WAIT_SECONDS,
        takeover: bool = False,
    ) -> None:
        options = EngineOptions.check(
            run_dir,
            every_steps=every_steps,
            every_seconds=every_seconds,
            keep_last=keep_last,
            keep_best=keep_best,
            keep_best_mode=keep_best_mode,
            milestone_every=milestone_every,
            milestones=milestones,
            budget=budget,
            when_busy=when_busy,
            on_error=on_error,
            on_damage=on_damage,
            fresh=fresh,
            strict=strict,
            track_rng=track_rng,
            overlap=overlap,
            debug_staging=debug_staging,
            algorithm=algorithm,
            notes=notes,
            drain_wait=drain_wait,
            takeover=takeover,
        )
        self._on_error = on_error
        self._on_damage = on_damage
        self._strict = options.strict
        self._fresh = options.fresh
        self._tracked = Tracked(track_rng=options.track_rng)
        self._owner = RingOwner(self)
        self._evaluations = Evaluations()
        self._notes = options.identity.notes
        self._scalars = Scalars()
        self._is_poisoned = False
        self._owner_pid = os.getpid()
        self._session: Session | None = None
        # Empty at first, so that an interrupt at any moment finds here what was opened so far.
        session = Session(self._scalars.committed)
        self._stop = StopSignals()
        self._lifeline = lifeline_of_process()
        try:
            session.open(
                options.path,
                keep_last=options.keep_last,
                keep_best=options.keep_best,
                keep_best_mode=options.keep_best_mode,
                drain_wait=options.drain_wait,
                takeover=options.takeover,
            )
            self._taker = Taker(
                session,
                self._tracked,
                options.trigger,
                options.identity,
                self._evaluations,
                self._scalars,
                options.staging,
                options.milestones,
                waits=options.waits,
                raises=options.raises,
            )
            self._has_snapshots = None
            self._exit_hook = close_at_exit(self)
            register_for_child(self)
            if self._lifeline is not None:
                self._lifeline.add_run(session.run_dir, session.claim.generation)
                self._stop.install_where_default()
            self._session = session
        except BaseException:
            self._session = None
            self._stop.uninstall()
            run_whole(session.abandon, even_if_interrupted=True)
            raise

    def tick(self, step: int, metrics: Metrics | None = None) -> PendingSnapshot | None:
        """Take a snapshot if one is due; call it as the last statement of a step.

        The snapshot holds the state with which step + 1 begins; everything is copied when this
        returns. `metrics` go into its manifest, or what they return where they are a function: it
        is called only for a snapshot. Returns the snapshot that was started, else None. Raises the
        error of an earlier snapshot (see `on_error`), UnrestoredRunError, PoisonedEngineError, and
        what capturing raises: CaptureError, SharedMemoryError, errors of tracked objects.
        ConfigError for a step that is no integer from 0 to 2**63 - 1, and after a restore for one
        before its `next_step`. StopRequested where a signal came (see `stopping_on_signals`).
        """
        session = self._live()
        if session.is_this_threads_turn():
            return None
        step = settings.check_step(step)
        if self._lifeline is not None:
            tell_supervisor(self._lifeline, step)
        stop = self._stop
        with self._turn(session):
            self._check_started(session)
            if stop.number is None:
                return self._taker.tick(step, metrics)
            last = self._taker.last(step, metrics, stop.remaining_seconds)
        raise stopped(stop, step, last)

    @property
    def stop_requested(self) -> bool:
        """Whether a signal has asked for the end of the run, which the next `tick` brings about."""
        return self._stop.number is not None

    def stopping_on_signals(
        self,
        signals: Collection[int] = STOP_SIGNALS,
        *,
        grace: float = config.STOP_GRACE_SECONDS,
    ) -> AbstractContextManager[None]:
        """End the run in one snapshot when a signal comes while the block runs.

            with engine, engine.stopping_on_signals():
                for step in range(report.next_step, total):
                    ...
                    engine.tick(step)

        The first signal makes the next `tick` take a snapshot, wait until it is durable, at most
        `grace` seconds after the signal, and raise StopRequested: a SystemExit with status 128 +
        signal. One that could not be waited for is finished by the writer alone. A second signal
        goes to the handler that was there before, unless it comes within a second: then it counts
        as the first. Under `pyengine run` engines do this unasked, where the script handles
        neither signal itself.

        The block must be entered in the main thread (ConfigError). With several engines in one
        process the one that ticks first ends the program; for the others their newest snapshot
        counts.
        """
        self._live()
        grace = settings.check_seconds("grace", grace, may_be_zero=True)
        return self._stopping(StopSignals(signals, grace))

    @contextmanager
    def _stopping(self, stop: StopSignals) -> Iterator[None]:
        former = self._stop
        with installed(stop, former):
            self._stop = stop
            try:
                yield
            finally:
                self._stop = former

    def snapshot(
        self,
        step: int,
        metrics: Mapping[str, float] | None = None,
        *,
        weights_only: bool = False,
    ) -> PendingSnapshot:
        """Take a snapshot now, as the one of `step`; `metrics` go into its manifest.

        `weights_only=True` saves modules and tensors alone, for evaluation: a restore passes it
        over unless asked for it, and `keep_last` of them stay beside the others.
        Waits up to 30 s for a staging slot, then raises SnapshotBusyError. Asked for in a signal
        handler, where the learner may be in the middle of a step, it is a wish for the next tick.
        Raises as `tick` does.
        """
        session = self._live()
        step = settings.check_step(step)
        checked = check_metrics(settings.check_mapping("metrics", metrics))
        weights_only = settings.check_flag("weights_only", weights_only)
        if session.is_this_threads_turn() or is_in_signal_handler():
            return self._taker.wish()
        with self._turn(session):
            self._check_started(session)
            return self._taker.snapshot(step, checked, weights_only=weights_only)

    def finish_staging(self) -> None:
        """Copy now what the newest snapshot has left for later; nothing without `overlap`.

        To be called before parameters, or an optimizer's state, are changed between a tick and the
        next step by anything but a tracked optimizer's step. Blocks for that copy at most, not for
        the disk. Any thread.
        """
        self._live().buffers.finish_late()

    def restore(
        self,
        *,
        eager: bool = False,
        replay: Replay = "exact",
        replay_last: int | None = None,
        allow: Collection[str] = (),
        fall_back: bool = True,
        sanity: Sanity | None = None,
        weights: bool = False,
    ) -> RestoreReport:
        """Put the newest committed snapshot back into the tracked objects; always a report.

        On a run without snapshots, and by an engine that was made with `fresh=True`, nothing is
        put back: the report is false and its `next_step` 0.
        Replay rows come back lazily: full segments are mapped files, read and verified when they
        are touched; `eager=True` reads and verifies them now, as always on network and FUSE
        file systems. `replay="skip"` leaves rings empty, `replay_last=N` takes the newest N rows
        only. `replay="latest"` takes the rows too that the run added after that snapshot: all of
        them after a dead trainer, all but at most one open segment a lane after a dead machine
        (mutable fields get their defaults there, and the last episode breaks); through later
        snapshots that are damaged or gone too. Rows that it knows of and cannot give are told in
        the report's notes, by ring, lane and cause. `allow` names
        components that may be missing on either side.

        Snapshots of weights alone are passed over; where there are no others: WeightsOnlyError.
        `weights=True` takes the newest of either kind and puts modules and tensors back, nothing
        else: optimizers, rows, generators and counters stay as the script has made them, and
        `next_step` counts on from there.

        A snapshot whose damage is proven (read twice) is moved into the run's `quarantine/`, never
        deleted, those that share the damaged file are passed over, and the next older one is put
        back: each step is logged as an error and noted in the report. `fall_back=False` raises
        DamageError instead and moves nothing. Where no snapshot is left: NothingRestorableError,
        never a fresh start.

        `sanity` is called without arguments when everything but generators and samplers was put
        back: where it raises, or returns False, or where parameters are not finite,
        SanityCheckError is raised; without it parameters that are not finite are a warning. Two
        such checks: pyengine.engine.sanity.

        Nothing live changes before everything was read, verified and compared. Raises
        ComponentMismatchError, StateMismatchError, FormatVersionError, MalformedFileError, OSError,
        CaptureError where a snapshot of what is tracked would raise it, and
        NestedCallError within a tick or restore of the same thread: live objects are unchanged
        then. An exception while they are being changed, SanityCheckError among them, comes through
        as it is; the engine refuses to go on until a restore succeeds (PoisonedEngineError).
        """
        session = self._live()
        settings.check_choice("replay", replay, ("exact", "skip", "latest"))
        if replay_last is not None:
            replay_last = settings.check_count("replay_last", replay_last, low=0)
        allowed = settings.check_names("allow", allow)
        eager = settings.check_flag("eager", eager) or self._is_remote()
        fall_back = settings.check_flag("fall_back", fall_back)
        weights = settings.check_flag("weights", weights)
        if sanity is not None:
            settings.check_callable("sanity", sanity)
        options = RestoreOptions(
            eager, replay, replay_last, allowed, fall_back, sanity, self._on_damage, weights
        )
        with self._turn(session):
            session.buffers.finish_late()
            if session.has_pending:
                raise errors.RestoreError("a snapshot is pending: wait for it, then restore")
            captured = self._tracked.rehearse()
            options = replace(options, runtime=runtime(captured))
            if self._fresh:
                report = start_fresh(session, self._tracked)
            else:
                report = restore_newest(session, self._tracked, options, self._applying)
            if report.snapshot is not None:
                self._notes.restored(report.snapshot.notes)
                report = self._take_evaluations(report)
            self._has_snapshots = False
            lazy = () if eager or not report.rows else self._tracked.rings
            self._taker.start(report.global_step, lazy_rings=lazy)
        if self._lifeline is not None:
            self._lifeline.restored(report.global_step)
        if report:
            logger.info("%s", report)
        return report

    def _is_remote(self) -> bool:
        return is_remote(self._live().run_dir)

    def _take_evaluations(self, report: RestoreReport) -> RestoreReport:
        forgotten = self._evaluations.replace(report.evaluations)
        if not forgotten:
            return report
        note = f"{forgotten} evaluation records made since that snapshot were dropped"
        return replace(report, notes=(*report.notes, note))
