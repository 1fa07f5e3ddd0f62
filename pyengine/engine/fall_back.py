"""Which snapshot a restore puts back, and what becomes of those that cannot be.

Newest first. Only damage that was proven (catalog.quarantine) moves the search on: the snapshot
goes into quarantine, others that hold the same file are passed over, the next is tried; each step
is logged as an error and told in the report. Everything else is raised as it is, with nothing
moved. A run that has, or had, snapshots never begins anew because none of them can be restored.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pyengine.catalog import commit, quarantine, scan, trust
from pyengine.catalog.endings import told_of_losses
from pyengine.catalog.info import SnapshotInfo
from pyengine.engine.critical import run_whole
from pyengine.engine.report import RestoreReport
from pyengine.engine.restore import RestoreOptions, restore_snapshot, start_fresh
from pyengine.engine.tracked import Tracked
from pyengine.errors import (
    DamageError,
    FormatVersionError,
    MalformedFileError,
    NothingRestorableError,
    WeightsOnlyError,
)
from pyengine.events import logger
from pyengine.format import names

if TYPE_CHECKING:
    from pyengine.engine.session import Session

Suspicion = DamageError | FormatVersionError | FileNotFoundError
"""What a restore raises that may be due to damage; whether it is, is then proven."""

_SHOWN = 5
"""How many refused snapshots an error's text lists; its attribute has them all."""


def restore_newest(
    session: Session,
    tracked: Tracked,
    options: RestoreOptions,
    applying: Callable[[bool], None],
) -> RestoreReport:
    """Put the newest snapshot back that can be, or start a run that never had one.

    Raises NothingRestorableError, and as SnapshotEngine.restore says; `applying` is told as
    `restore_snapshot` tells it.
    """
    return _Search(session, tracked, options, applying).run()


class _Search:
    """One restore: the candidates, what was found wrong with them, what is to be told."""

    def __init__(
        self,
        session: Session,
        tracked: Tracked,
        options: RestoreOptions,
        applying: Callable[[bool], None],
    ) -> None:
        self._session = session
        self._run_dir = session.run_dir
        self._tracked = tracked
        self._options = options
        self._tell = applying
        self._is_applying = False
        self._damaged: dict[quarantine.FileIdentity, quarantine.DamagedFile] = {}
        self._notes: list[str] = []
        self._refused: list[tuple[str, str]] = []
        self._weights: list[str] = []
        """Snapshots of weights that were passed over."""

    def run(self) -> RestoreReport:
        """Try one after the other."""
        candidates = scan.restorable_names(self._run_dir)
        if not candidates:
            self._refused += quarantine.lost_snapshots(self._run_dir)
            if self._refused:
                raise self._nothing_left()
            return start_fresh(self._session, self._tracked)
        for text in scan.told_of_deaths(self._run_dir, candidates):
            logger.error("%s: %s", self._run_dir, text)
            self._notes.append(text)
        trust.check_pool(self._run_dir, with_files=self._options.replay == "latest")
        self._damaged = quarantine.damaged_files(self._run_dir)
        for name in candidates:
            report = self._try(name)
            if report is not None:
                self._tell_of_newer(name)
                self._mend_latest(name)
                self._tell_of_losses(report)
                return replace(report, notes=(*self._notes, *report.notes))
        raise self._nothing_left() if self._refused else self._weights_alone()

    def _try(self, name: str) -> RestoreReport | None:
        """Restore one snapshot; None: it is damaged, or shares a damaged file."""
        trust.check_snapshot(self._run_dir, name)
        try:
            info = scan.read_snapshot(self._run_dir, name)
        except DamageError as error:
            self._give_up(quarantine.in_manifest(name, error), error)
            return None
        if info.is_weights_only and not self._options.weights:
            self._weights.append(name)
            self._notes.append(f"{name} was passed over: it holds weights alone")
            return None
        shared = quarantine.shared_file(info, self._damaged)
        if shared is not None:
            self._pass_over(info, *shared)
            return None
        for is_last in (False, True):
            try:
                return self._restore(info)
            except (DamageError, FormatVersionError, FileNotFoundError) as error:
                suspects = quarantine.suspects(info, error)
                if self._is_applying:
                    raise
                damage = quarantine.prove(info, suspects)
                if damage is not None:
                    self._give_up(damage, error)
                    return None
                if not isinstance(error, DamageError):
                    raise
                if is_last or not suspects:
                    raise _malformed(info, error) from error
                logger.warning("%s: %s: a second read found nothing wrong", info.name, error)
        raise AssertionError("the last attempt returns or raises")

    def _restore(self, info: SnapshotInfo) -> RestoreReport:
        def applying(is_applying: bool) -> None:
            self._is_applying = is_applying
            self._tell(is_applying)

        return restore_snapshot(self._session, self._tracked, info, self._options, applying)

    def _give_up(self, damage: quarantine.Damage, error: Suspicion) -> None:
        """Move a damaged snapshot away; without fall_back, raise and move nothing."""
        path = os.path.join(self._run_dir, names.SNAPSHOTS, damage.snapshot)
        text = damage.problem.text
        if not self._options.fall_back:
            if isinstance(error, DamageError):
                raise error
            problem = damage.problem
            raise DamageError(
                text,
                path=problem.path,
                offset=problem.offset,
                expected=problem.expected,
                got=problem.got,
            ) from error
        logger.error("%s is damaged: %s", path, text)
        generation = self._session.claim.generation
        target = run_whole(lambda: quarantine.move(self._run_dir, generation, damage))
        self._damaged = quarantine.damaged_files(self._run_dir)
        place = "still there: a reader has it locked" if target is None else f"now in {target}"
        logger.error("%s is %s; the next older snapshot is tried", path, place)
        self._refused.append((target or path, text))
        self._notes.append(f"{damage.snapshot} is damaged, {place}: {text}")

    def _pass_over(self, info: SnapshotInfo, file: str, damaged: str) -> None:
        text = f"its {file} is the damaged {damaged}"
        logger.error("%s is passed over: %s", info.path, text)
        self._refused.append((info.path, text))
        self._notes.append(f"{info.name} was passed over: {text}")

    def _tell_of_newer(self, restored: str) -> None:
        """Say which newer snapshots were committed and are not in their place, but for those that
        this search has moved away."""
        first = quarantine.order_of(restored).generation
        for path, reason in quarantine.lost_snapshots(self._run_dir, first):
            name = os.path.basename(path)
            is_told = any(path == refused for refused, _ in self._refused)
            if not is_told and quarantine.order_of(name) > quarantine.order_of(restored):
                text = f"{name} is newer than what was restored, and {reason}"
                logger.error("%s: %s", self._run_dir, text)
                self._notes.append(text)

    def _tell_of_losses(self, report: RestoreReport) -> None:
        """Say which rows the writers since that snapshot could not bring to disk."""
        assert report.snapshot is not None
        first, end = report.snapshot.generation, self._session.claim.generation
        for text in told_of_losses(self._run_dir, first, end):
            logger.warning("%s: %s", self._run_dir, text)
            self._notes.append(text)

    def _mend_latest(self, restored: str) -> None:
        generation = self._session.claim.generation
        run_whole(lambda: commit.mend_latest(self._run_dir, generation, restored))

    def _weights_alone(self) -> WeightsOnlyError:
        shown = ", ".join(self._weights[:_SHOWN])
        return WeightsOnlyError(
            f"{self._run_dir}: its snapshots hold weights alone ({shown}), and training does not "
            "go on from those as it was. To begin anew with the newest weights: "
            "engine.restore(weights=True); without them: SnapshotEngine(..., fresh=True)",
            snapshots=tuple(self._weights),
        )

    def _nothing_left(self) -> NothingRestorableError:
        told = [f"{path}: {reason}" for path, reason in self._refused[:_SHOWN]]
        more = len(self._refused) - len(told)
        listed = "; ".join([*told, *([f"and {more} more"] if more else [])])
        if self._weights:
            listed += f"; {self._weights[0]} holds weights alone: restore(weights=True)"
        return NothingRestorableError(
            f"{self._run_dir}: none of its snapshots can be restored ({listed}). Put a good copy "
            f"into {names.SNAPSHOTS}/ under its own name, or begin anew beside them with "
            "SnapshotEngine(..., fresh=True)",
            refused=tuple(self._refused),
        )


def _malformed(info: SnapshotInfo, error: DamageError) -> MalformedFileError:
    """Return what to raise for files that are what the manifest says, and cannot be used."""
    return MalformedFileError(
        f"{info.name}: {error}; the checksums of its files hold, so it was written so: nothing was "
        f"moved. To restore an older snapshot, move {info.path} away",
        path=error.path,
        offset=error.offset,
    )
