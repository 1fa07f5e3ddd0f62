"""Taking snapshots: when, into which slot, and what became of the earlier ones.

One Taker belongs to one engine, which lets one thread at a time in. It looks after the writer on
the way: rings that got their memory since are handed over, a dead writer is replaced.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from pyengine import config, errors
from pyengine.engine.buffers import StagingSlot
from pyengine.engine.cut import Cutter, Staging
from pyengine.engine.describe import Identity, Metrics, check_metrics, draft_of, meta_of
from pyengine.engine.evaluations import Evaluations
from pyengine.engine.late import StepGuards
from pyengine.engine.milestones import Milestones
from pyengine.engine.pending import PendingSnapshot
from pyengine.engine.scalars import Scalars
from pyengine.engine.session import Session
from pyengine.engine.settings import check_mapping
from pyengine.engine.tracked import Tracked
from pyengine.engine.trigger import Trigger
from pyengine.events import logger
from pyengine.format.levels import UNDECLARED, WEIGHTS, Level
from pyengine.format.names import snapshot_name


class Taker:
    """Takes the snapshots of a session. `waits`: for a slot, instead of leaving one out;
    `raises`: errors of earlier snapshots, instead of logging them."""

    def __init__(
        self,
        session: Session,
        tracked: Tracked,
        trigger: Trigger,
        identity: Identity,
        evaluations: Evaluations,
        scalars: Scalars,
        staging: Staging,
        milestones: Milestones,
        *,
        waits: bool,
        raises: bool,
    ) -> None:
        self._session = session
        self._tracked = tracked
        self._trigger = trigger
        self._identity = identity
        self._evaluations = evaluations
        self._scalars = scalars
        self._milestones = milestones
        self._waits = waits
        self._raises = raises
        self._guards = StepGuards(self._before_step)
        self._cutter = Cutter(
            session.control, session.buffers, tracked, staging, self._guards, session.link.wake
        )
        self._latest: PendingSnapshot | None = None
        self._is_slot_made = False
        self._made_for_count = -1
        self._wish: PendingSnapshot | None = None
        self.skipped = 0
        """How many snapshots were left out."""
        self._skipped_in_a_row = 0
        self._restored_step = -1
        self._is_untouched = False

    def start(self, restored_step: int | None, *, lazy_rings: Iterable[str] = ()) -> None:
        """Begin to count steps and seconds; have `lazy_rings` warmed."""
        self._restored_step = -1 if restored_step is None else restored_step
        self._is_untouched = restored_step is not None
        self._trigger.start(max(0, self._restored_step))
        self._milestones.start(max(0, self._restored_step))
        self._hand_over_rings()
        for name in lazy_rings:
            self._session.link.warm(name)  # the first batch is asked for already, and comes first
        self._make_slot_ahead()

    def is_as_restored(self, step: int) -> bool:
        """Whether the run was restored at `step` and nothing was asked for since."""
        return self._is_untouched and step == self._restored_step

    def tick(self, step: int, metrics: Metrics | None) -> PendingSnapshot | None:
        """Take a snapshot if one is due or wished for; ConfigError for a step made before."""
        self._check_order("tick", step, self._restored_step + 1)
        self._is_untouched = False
        self._raise_errors()
        is_milestone = self._milestones.is_due(step)
        is_full = self._trigger.is_due(step) or self._wish is not None
        is_full = is_full or (is_milestone and self._milestones.is_full)
        if not is_full and not is_milestone:
            self._make_slot_ahead()
            return None
        # A full one goes first; a milestone of weights stays due, and is the next tick's.
        is_milestone = is_milestone and is_full == self._milestones.is_full
        checked = check_metrics(
            check_mapping("metrics", metrics() if callable(metrics) else metrics)
        )
        pending = self._begin(
            step,
            checked,
            config.STAGING_WAIT_SECONDS if self._waits else 0.0,
            weights_only=not is_full,
            milestone=is_milestone,
        )
        if pending is None and is_full:
            self._skip(step)
        elif pending is not None and is_milestone:
            self._milestones.taken(step)
        return pending

    def snapshot(
        self,
        step: int,
        metrics: dict[str, float],
        failed: list[errors.PyengineError] | None = None,
        *,
        weights_only: bool = False,
    ) -> PendingSnapshot:
        """Take a snapshot; SnapshotBusyError where no slot becomes free in time.

        Errors of earlier snapshots are raised instead, or with `failed` noted there. The restored
        step may be saved once more: a run that has ended, and was started again, ends with it.
        """
        self._check_order("a snapshot", step, self._restored_step)
        self._is_untouched = False
        self._raise_errors(failed)
        wait_seconds = config.STAGING_WAIT_SECONDS
        pending = self._begin(step, metrics, wait_seconds, failed, weights_only=weights_only)
        if pending is None:
            raise errors.SnapshotBusyError(
                f"both staging slots stayed in use for {config.STAGING_WAIT_SECONDS:.0f} s: the "
                f"writer (pid {self._session.link.pid}) is slower than the snapshots, or stopped"
            )
        return pending

    def last(
        self, step: int, metrics: Metrics | None, wait_seconds: float
    ) -> PendingSnapshot | errors.PyengineError:
        """Take the last snapshot of a run that is about to end, or return why there is none.

        Errors of earlier ones are logged: they must not keep it from being taken. Waits up to
        `wait_seconds` for a staging slot.
        """
        failed: list[errors.PyengineError] = []
        try:
            self._check_order("a tick", step, self._restored_step + 1)
            self._raise_errors(failed)
            checked = check_metrics(
                check_mapping("metrics", metrics() if callable(metrics) else metrics)
            )
            pending = self._begin(step, checked, wait_seconds, failed)
        except errors.PyengineError as error:
            return error
        finally:
            for former in failed:
                logger.warning("%s", former)
        return pending or errors.SnapshotBusyError(
            f"both staging slots stayed in use for {wait_seconds:.1f} s"
        )

    def wish(self) -> PendingSnapshot:
        """Ask for a snapshot at the next tick. Safe in a signal handler."""
        wish = self._wish = self._wish or PendingSnapshot(self._session)
        return wish

    def look_after_writer(self) -> None:
        """Hand over what the writer lacks, take in its news, replace it when it died."""
        self._hand_over_rings()
        self._session.link.end_if_stopped()
        try:
            self._session.poll()
        except errors.WriterDiedError as error:
            logger.error("%s", error)

    def close(self) -> None:
        """Finish what is staged late and let go of the staging arenas' memory; a wish stays
        unfulfilled."""
        self._guards.take_off()
        self._session.buffers.finish_late()
        wish, self._wish = self._wish, None
        if wish is not None:
            wish.give_up()
        self._cutter.close()

    def _begin(
        self,
        step: int,
        metrics: dict[str, float],
        wait_seconds: float,
        failed: list[errors.PyengineError] | None = None,
        *,
        weights_only: bool = False,
        milestone: bool = False,
    ) -> PendingSnapshot | None:
        """Take a snapshot into a free slot; None where none became free in time."""
        session = self._session
        session.buffers.finish_late()
        session.buffers.give_up_claims()
        sequence = session.next_sequence()
        slot = self._claim_slot(sequence, wait_seconds, failed)
        if slot is None:
            return None
        session.record_fates()
        started = time.perf_counter()
        pending = (None if weights_only else self._wish) or PendingSnapshot(session)
        pending.weights_only = weights_only
        name = snapshot_name(step, session.claim.generation, sequence)

        def published() -> None:
            pending.bind(slot.entry, step=step, sequence=sequence, name=name)
            session.add_pending(pending)
            if not weights_only:
                self._latest = pending
                self._wish = None

        try:
            # The writer must have every ring before it sees a snapshot of it.
            for ring in self._tracked.rings.values():
                ring.mutable_arrays()
            self._hand_over_rings()
            count, records = self._evaluations.for_snapshot()
            level = Level(WEIGHTS) if weights_only else UNDECLARED
            draft = draft_of(
                session, sequence, step, metrics, self._identity, count, level, milestone
            )
            self._cutter.take(slot, draft, meta_of(draft, records), published)
        finally:
            session.link.wake()
        pending.stall_seconds += time.perf_counter() - started
        if weights_only:
            return pending
        self._is_slot_made = True
        self._trigger.fired(step)
        self._trigger.stalled(pending.stall_seconds)
        self._skipped_in_a_row = 0
        return pending

    def _before_step(self) -> None:
        """What a tracked optimizer's step waits for: the rest of the newest snapshot."""
        buffers, latest = self._session.buffers, self._latest
        if buffers.is_late:
            started = time.perf_counter()
            buffers.finish_late()
            if latest is not None:
                latest.stall_seconds += time.perf_counter() - started
                self._trigger.stalled(latest.stall_seconds)

    def _make_slot_ahead(self) -> None:
        """Have the first slot's memory made, again where optimizers have got their state since."""
        if not self._is_slot_made:
            count = self._tracked.state_count()
            if count > 2 * self._made_for_count:
                self._made_for_count = count
                self._cutter.make_ahead()

    def _claim_slot(
        self, sequence: int, wait_seconds: float, failed: list[errors.PyengineError] | None
    ) -> StagingSlot | None:
        deadline = time.monotonic() + wait_seconds
        self._session.link.revive()
        while True:
            slot = self._session.buffers.claim(sequence)
            remaining = deadline - time.monotonic()
            if slot is not None or remaining <= 0:
                return slot
            self._session.wait(remaining)
            self._raise_errors(failed)

    def _check_order(self, what: str, step: int, first: int) -> None:
        if step < first:
            raise errors.ConfigError(
                f"{what} of step {step}: the run was restored at step {self._restored_step}; let "
                f"the loop go on with report.next_step = {self._restored_step + 1}",
                field="step",
                expected=first,
                got=step,
            )

    def _skip(self, step: int) -> None:
        self._trigger.fired(step)
        self.skipped += 1
        self._skipped_in_a_row += 1
        self._scalars.skipped(self.skipped, step)
        self._session.link.end_if_stopped()
        count = self._skipped_in_a_row
        if count > 1 and count & (count - 1) == 0:  # 2, 4, 8, ...: a log is no place for floods
            logger.warning(
                "step %d: no snapshot, both staging slots are still being written; %d in a row "
                "were left out",
                step,
                count,
            )

    def _hand_over_rings(self) -> None:
        if self._session.is_line_open:
            for name, ring in self._tracked.rings.items():
                self._session.give_ring(name, ring)

    def _raise_errors(self, failed: list[errors.PyengineError] | None = None) -> None:
        """Raise or log what did not come about; with `failed`, note it there instead."""
        found = self._take_errors()
        taken_over = self._session.taken_over
        if taken_over is not None:
            # Nothing will ever be committed again: no policy makes that a mere warning.
            raise taken_over
        if failed is not None:
            failed += found
            return
        for error in found[1:] if self._raises else found:
            logger.warning("%s", error)
        if found and self._raises:
            raise found[0]

    def _take_errors(self) -> list[errors.PyengineError]:
        """Take in what became of earlier snapshots; return each error once."""
        session = self._session
        self._hand_over_rings()
        found: list[errors.PyengineError] = []
        try:
            session.poll()
        except errors.WriterDiedError as error:
            found.append(error)
        taken = [pending.take_error() for pending in session.settle()]
        found += [error for error in taken if error is not None]
        if session.persist_seconds is not None:
            self._trigger.persisted(session.persist_seconds)
        return found
