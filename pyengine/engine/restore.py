"""Restore: a committed snapshot back into the live objects, all of it or nothing.

    read    every file except replay segments, verified against the manifest
    decode  into values; compare with the live objects (nothing has changed so far)
    line    give the replay files their names in the pool, open the new history; durable
    rings   meanwhile, put the rows into storage of their own: files mapped, their headers checked
    apply   modules, optimizers, schedulers, rings, other state, environments
    check   what is live now: finite parameters, the caller's own check
    late    generators and samplers, after every callable of the user
    mark    the snapshot as restored

An exception before `apply` leaves everything as it was. One during it leaves live objects half
changed: the engine refuses to go on until a restore succeeds. Which snapshot is put back, and what
becomes of damaged ones, is decided by pyengine.engine.fall_back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pyengine.capture.component import Component, Decoded, Phase
from pyengine.capture.coverage import nonfinite_parameters
from pyengine.catalog import markers, pool
from pyengine.catalog.commit_lock import commit_lock
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.later_rows import find_later_rows
from pyengine.catalog.lines import Line, draw_id, next_line, open_line, recording
from pyengine.catalog.snapshot_files import read_files
from pyengine.engine.comparison import absent, beside_weights, check_kind, compare_names
from pyengine.engine.critical import run_beside, run_whole
from pyengine.engine.levels import level_at_resume
from pyengine.engine.report import ComponentReport, RestoreReport
from pyengine.engine.ring_restore import RingRestore, RingSkip, is_replay_segment, read_ring
from pyengine.engine.sanity import run_check
from pyengine.engine.tracked import Tracked
from pyengine.errors import (
    DamageError,
    MalformedFileError,
)
from pyengine.events import logger
from pyengine.format.evaluations import EvaluationRecord, read_evaluations
from pyengine.format.levels import WEIGHT_KINDS
from pyengine.format.manifest import ComponentRecord
from pyengine.format.names import META

if TYPE_CHECKING:
    from pyengine.engine.session import Session
    from pyengine.replay.damage import OnDamage
    from pyengine.replay.ring import ReplayBuffer

Replay = Literal["exact", "skip", "latest"]

Sanity = Callable[[], object]
"""A check of what was restored: raises, or returns False, where something is wrong."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """What a caller asked for."""

    eager: bool = False
    replay: Replay = "exact"
    replay_last: int | None = None
    allow: tuple[str, ...] = ()
    fall_back: bool = True
    sanity: Sanity | None = None
    on_damage: OnDamage = "raise"
    weights: bool = False
    runtime: Mapping[str, Any] = field(default_factory=dict)
    """What this process runs on (pyengine.engine.runtime)."""


@dataclass(slots=True)
class _Work:
    """A restore under way: what was decoded, what is to be told."""

    info: SnapshotInfo
    decoded: dict[str, Decoded] = field(default_factory=dict)
    rings: dict[str, RingRestore | RingSkip] = field(default_factory=dict)
    evaluations: tuple[EvaluationRecord, ...] = ()
    reports: list[ComponentReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    goes_on: bool = False
    """Whether environments are put back, so that open episodes are not at an end."""
    lowering: list[str] = field(default_factory=list)
    """What does not go on as it did, though nothing of it is missing."""

    line_id: int = field(default_factory=draw_id)

    def prepare_rings(self, options: RestoreOptions) -> None:
        """Put the rows of all rings into storage of their own."""
        for ring in self.rings.values():
            ring.prepare(options, keep_breaks=self.goes_on)

    def components(self, tracked: Tracked) -> list[Component]:
        """Return what is put back, in that order."""
        return [component for component in tracked.in_order() if component.name in self.decoded]


def start_fresh(session: Session, tracked: Tracked) -> RestoreReport:
    """Open the first line of a run, or a new one beside those that are there."""
    generation, rows = session.claim.generation, _present_rows(tracked)
    # Where no interrupt can leave the lock held.
    line = run_whole(lambda: open_line(session.run_dir, generation, parent=None, start_rows=rows))
    _begin_line(session, tracked.rings.values(), line.id, None)
    return RestoreReport(None, line.text, run_dir=session.run_dir)


def restore_snapshot(
    session: Session,
    tracked: Tracked,
    info: SnapshotInfo,
    options: RestoreOptions,
    applying: Callable[[bool], None],
) -> RestoreReport:
    """Put a snapshot back. `applying(True)` is called before the first live object changes, and
    `applying(False)` once all of them have."""
    started = time.perf_counter()
    work = _prepare(session.run_dir, tracked, info, options)
    generation = session.claim.generation
    start_rows = _present_rows(tracked)
    start_rows.update((name, ring.start_rows) for name, ring in work.rings.items())
    with ExitStack() as prepared:
        for ring in work.rings.values():
            ring.plan(session.run_dir, work.line_id)
            prepared.callback(ring.close)
        opening = partial(_open_line, session, work, start_rows)
        with run_beside(opening, partial(work.prepare_rings, options)) as line:
            for ring in work.rings.values():
                ring.settle(options, keep_breaks=work.goes_on)
        with markers.applying(session.run_dir, generation, info.name):
            applying(True)
            # Rings that are exchanged get the line with their storage: the writer must not put
            # rows of the former one under it.
            left = [ring for name, ring in tracked.rings.items() if name not in work.rings]
            _begin_line(session, left, line.id, info.name)
            _apply(work.components(tracked), work, options)
            applying(False)
    markers.mark_restored(session.run_dir, generation, info.name)
    return RestoreReport(
        info,
        line.text,
        tuple(work.reports),
        tuple(work.notes),
        time.perf_counter() - started,
        session.run_dir,
        work.evaluations,
        level_at_resume(
            info,
            work.reports,
            work.lowering,
            options.runtime,
            harmless=tracked.harmless,
            is_weights=options.weights,
        ),
    )


def _open_line(
    session: Session, work: _Work, start_rows: Mapping[str, Sequence[int]]
) -> Iterator[Line]:
    """Open a line: yield it once the files of the rings have their names under it; names and
    record are durable at the end.

    The commit lock is held from here to there, for two waits for the disk: names come before the
    record, so that one commit of its journal takes them and the record's temporary.
    """
    with commit_lock(session.run_dir, session.claim.generation) as held:
        line = next_line(held, work.line_id, parent=work.info, start_rows=start_rows)
        try:
            with recording(held, line) as directories:
                for ring in work.rings.values():
                    directories += ring.adopt(held)
                yield line
        except BaseException:
            pool.remove_line(held, line.id)
            raise


def _present_rows(tracked: Tracked) -> dict[str, list[int]]:
    """Return the next row id of every lane of the rings that hold rows."""
    return {
        name: [ring.control.total_count(lane) for lane in range(ring.num_envs)]
        for name, ring in tracked.rings.items()
        if ring.control is not None
    }


def _begin_line(
    session: Session, rings: Iterable[ReplayBuffer], line: int, parent: str | None
) -> None:
    session.control.line = line
    session.control.parent = parent
    session.is_line_open = True
    for ring in rings:
        ring.set_line(line)


def _prepare(run_dir: str, tracked: Tracked, info: SnapshotInfo, options: RestoreOptions) -> _Work:
    saved = {record.name: record for record in info.components if record.status == "saved"}
    allow = options.allow
    if options.weights:
        saved = {name: one for name, one in saved.items() if one.kind in WEIGHT_KINDS}
        allow += tuple(beside_weights(tracked))
    compare_names(tracked, info, saved, allow)
    work = _Work(info)
    wanted = [record for name, record in saved.items() if name in tracked.names]
    files = read_files(info, _needed(info, wanted, options))
    # From here on checksums hold: what makes no sense now, no disk has made so.
    with _written_so(info):
        _decode(tracked, work, saved, files, options)
    work.reports += absent(tracked, info, saved, is_weights=options.weights)
    if options.replay_last is not None and work.rings:
        work.lowering.append(f"replay_last={options.replay_last}")
    if options.replay == "latest":
        rings = {name: ring for name, ring in work.rings.items() if isinstance(ring, RingRestore)}
        headers = {name: one.header for name, one in rings.items()}
        later, told = find_later_rows(run_dir, info, headers)
        work.notes += told
        for name, rows in later.items():
            rings[name].extend(rows)
            work.lowering.append(f"{name}: {rows.added} rows added after the snapshot")
    return work


def _decode(
    tracked: Tracked,
    work: _Work,
    saved: dict[str, ComponentRecord],
    files: Mapping[str, Any],
    options: RestoreOptions,
) -> None:
    """Decode verified files and compare what they hold with the live objects."""
    info = work.info
    sizes = {path: len(data) for path, data in files.items()}
    for component in tracked.in_order():
        record = saved.get(component.name)
        if record is not None:
            check_kind(component.name, component.kind, record)
            work.goes_on |= component.kind == "environment"
            decoded = component.decode({path: files[path] for path in record.files})
            told = component.check(decoded)
            work.notes += told
            work.lowering += told if component.kind == "rng" else ()
            work.decoded[component.name] = decoded
            size = sum(sizes[path] for path in record.files)
            work.reports.append(ComponentReport(record.name, record.kind, "restored", size))
    for name, ring in tracked.rings.items():
        if name in saved:
            check_kind(name, "ring", saved[name])
            skips = options.replay == "skip"
            work.rings[name] = RingSkip(name, ring) if skips else read_ring(name, ring, info, files)
    if info.evaluations:
        meta = os.path.join(info.path, META)
        found = read_evaluations(bytes(files[META]), meta, expected=info.evaluations)
        work.evaluations = tuple(one for one in found if one.step <= info.global_step)
        dropped = len(found) - len(work.evaluations)
        if dropped:
            work.notes.append(
                f"{dropped} evaluation records of steps after {info.global_step} were dropped"
            )


@contextmanager
def _written_so(info: SnapshotInfo) -> Iterator[None]:
    """Turn what a reader calls damage of verified bytes into what it is."""
    try:
        yield
    except DamageError as error:
        raise MalformedFileError(
            f"{info.name}: {error}; its checksum holds, so it was written so: restore an older "
            f"snapshot by moving {info.path} away, or with the pyengine that wrote it",
            path=os.path.join(info.path, error.path),
            offset=error.offset,
        ) from error


def _needed(
    info: SnapshotInfo, wanted: list[ComponentRecord], options: RestoreOptions
) -> list[str]:
    """Return the paths to read: of the wanted components, without replay segments."""
    paths: dict[str, None] = {}
    for record in wanted:
        if record.kind == "ring" and options.replay == "skip":
            continue
        paths.update((path, None) for path in record.files if not is_replay_segment(info, path))
    if info.evaluations:
        paths[META] = None
    return list(paths)


def _apply(components: list[Component], work: _Work, options: RestoreOptions) -> None:
    with _naming(work):
        _apply_phases(components, work, before=Phase.RING)
        for ring in work.rings.values():
            work.reports.append(ring.exchange(options))
        _apply_phases(components, work, after=Phase.RING, before=Phase.RNG)
        bad = nonfinite_parameters(components)
        if options.sanity is not None:
            run_check(options.sanity, work.info, bad)
        _apply_phases(components, work, after=Phase.STATE)
        for component in components:
            component.apply_late(work.decoded[component.name])
        for ring in work.rings.values():
            ring.install_sampler()
    if bad:
        work.notes.append(f"not finite: {', '.join(bad[:8])}")
        logger.warning("%s: parameters that are not finite: %s", work.info.name, ", ".join(bad))


def _apply_phases(
    components: list[Component],
    work: _Work,
    *,
    before: Phase | None = None,
    after: Phase | None = None,
) -> None:
    for component in components:
        is_early = before is None or component.phase < before
        is_late = after is None or component.phase > after
        if is_early and is_late:
            component.apply(work.decoded[component.name])


@contextmanager
def _naming(work: _Work) -> Iterator[None]:
    """Say which snapshot was being applied when an exception of user code comes through."""
    try:
        yield
    except BaseException:
        logger.error(
            "%s: an exception interrupted the restore while live objects were being changed",
            work.info.path,
        )
        raise


__all__ = ["RestoreOptions", "restore_snapshot", "start_fresh"]
