"""Age-out: pool files whose rows left the window, and that no pending snapshot needs, go.

Names only propose; the ring's segment table and the pending snapshots decide. The counts are read
before the snapshots' words: a snapshot that is not seen was cut later than the counts say, so its
rows are still in the window. Files of lines that were left behind go with the first commit of the
new line (catalog.commit).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyengine.catalog.commit_lock import commit_lock, try_lock
from pyengine.catalog.pool import remove_pool_files
from pyengine.errors import DamageError, RunError
from pyengine.events import logger
from pyengine.format import names
from pyengine.shm.states import SnapshotState, StagingState
from pyengine.writer.ring_view import RingView, pool_name
from pyengine.writer.session import Session

_WORTH_FILES = 8


@dataclass(frozen=True, slots=True)
class _Window:
    """Rows from `tails[lane]` on of a ring are needed."""

    tails: tuple[int, ...]


def sweep(session: Session, *, at_least: int = 1) -> int:
    """Unlink aged-out pool files of all rings where there are `at_least` of them; return how many.

    Takes the commit lock; gives up quietly where it is held. Not for worker threads.
    """
    windows = {name: _read_window(ring) for name, ring in session.rings.items()}
    needed = _needed_by_pending(session)
    if needed is None:
        return 0
    removed = 0
    for name, ring in session.rings.items():
        tails = windows[name].tails
        for window in needed.get(name, []):
            tails = tuple(map(min, tails, window.tails))
        aged = _aged_files(ring, tails)
        if len(aged) >= at_least:
            removed += _remove(session, ring, aged)
    return removed


def sweep_when_worth(session: Session) -> int:
    """Sweep rings whose aged-out files have become many; for runs without snapshots."""
    return sweep(session, at_least=_WORTH_FILES)


def _read_window(ring: RingView) -> _Window:
    return _Window(tuple(ring.control.tail(lane) for lane in range(ring.control.lanes)))


def _needed_by_pending(session: Session) -> dict[str, list[_Window]] | None:
    """Return what pending snapshots need, by ring; None where that cannot be told yet."""
    needed: dict[str, list[_Window]] = {}
    for entry in session.control.entries:
        sequence, state = entry.snapshot
        if state not in (SnapshotState.PENDING, SnapshotState.COMMITTING):
            continue
        staged, staging = entry.staging
        is_staged = staged == sequence and staging in (StagingState.STAGED, StagingState.WRITING)
        try:
            descriptor = session.descriptor(entry) if is_staged else None
        except (DamageError, ValueError):
            return None  # the snapshot fails when it is taken up; until then nothing goes
        if descriptor is None:
            return None
        for cut in descriptor.rings:
            needed.setdefault(cut.name, []).append(_Window(tuple(lane.tail for lane in cut.lanes)))
    return needed


def _aged_files(ring: RingView, tails: tuple[int, ...]) -> list[str]:
    lines = {ring.control.line, *ring.lines}
    aged = []
    for entry in _listed(ring):
        name = names.parse_pool_name(entry)
        if name is None or name.line not in lines or name.lane >= len(tails):
            continue
        if name.first_row + name.row_count <= tails[name.lane] and not _is_linked(ring, name):
            aged.append(entry)
    return aged


def _listed(ring: RingView) -> list[str]:
    try:
        return os.listdir(ring.directory)
    except FileNotFoundError:
        return []  # no file of the ring was written yet
    except OSError as error:
        # A chore must not end the writer; segments that cannot be written say so themselves.
        logger.warning("ring %s: aged-out files stay for now: %s", ring.name, error)
        return []


def _is_linked(ring: RingView, name: names.PoolName) -> bool:
    """Whether the segment table still names the file (a snapshot holds it, or its slot does)."""
    segment = name.first_row // ring.segment_rows
    place = ring.control.place(name.lane, segment)
    if place is None:
        return False
    return not isinstance(place, tuple) or pool_name(place) == name.text


def _remove(session: Session, ring: RingView, aged: list[str]) -> int:
    try:
        lock = try_lock(session.run_dir)
        if lock is None:
            return 0  # a chore: the next sweep comes soon
        with commit_lock(session.run_dir, session.generation, taken=lock) as held:
            remove_pool_files(held, ring.name, aged)
    except (RunError, OSError) as error:
        logger.warning("ring %s: aged-out files stay for now: %s", ring.name, error)
        return 0
    return len(aged)
