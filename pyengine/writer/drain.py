"""The end of a run as the writer sees it: nothing that was published may be lost.

Runs when the trainer died or closed. Staged snapshots and sealed segments are written by the usual
ways; what is left are the published rows of open segments, which become one part a ring in the
pool.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator

from pyengine.errors import NoSpaceError, PyengineError
from pyengine.events import logger
from pyengine.format import names
from pyengine.fs import door, durable
from pyengine.shm.states import SlotState
from pyengine.writer.parts import OpenRows, PartFile, spread, write_part
from pyengine.writer.ring_view import RingView
from pyengine.writer.session import Session
from pyengine.writer.workers import Workers

_ATTEMPTS = 2


def seal_full_segments(session: Session) -> None:
    """With a dead trainer: seal what it filled and had no time to seal."""
    for ring in session.rings.values():
        for slot, key in ring.control.slots_in(SlotState.OPEN):
            segment, lane = divmod(key, ring.control.lanes)
            if (segment + 1) * ring.segment_rows <= ring.control.total_count(lane):
                ring.control.move_slot(slot, key, SlotState.OPEN, SlotState.SEALED)


def drain_steps(session: Session, workers: Workers) -> Iterator[None]:
    """Persist the published open rows of all rings; each yield waits for an event.

    Rows that the newest committed snapshot holds already are left out with their ring. A part whose
    write fails is written once more, as a new file. Errors are logged and told, and the ring is
    noted in `session.undrained`: there is nobody left to raise them to.
    """
    session.undrained.clear()
    for ring in session.rings.values():
        rows = open_rows(ring)
        if not rows:
            continue
        for group in spread(ring, rows):
            error = yield from _try_write(session, workers, ring, group)
            if error is not None:
                session.undrained[ring.name] = str(error)
                session.warn(f"ring {ring.name}: open rows could not be persisted: {error}")


def _try_write(
    session: Session, workers: Workers, ring: RingView, rows: tuple[OpenRows, ...]
) -> Generator[None, None, Exception | None]:
    """Write one part, in a new file where the first was lost; return the error that stayed."""
    last: Exception | None = None
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            yield from _write(session, workers, ring, rows)
            return None
        except (OSError, PyengineError) as error:
            logger.error("ring %s: open rows, attempt %d: %s", ring.name, attempt, error)
            last = error
    return last


def open_rows(ring: RingView) -> list[OpenRows]:
    """Return the published rows of open segments, by lane; none where the newest committed snapshot
    holds all of the ring."""
    found: list[OpenRows] = []
    if _is_all_committed(ring):
        return found
    for slot, key in ring.control.slots_in(SlotState.OPEN):
        segment, lane = divmod(key, ring.control.lanes)
        total = ring.control.total_count(lane)
        first = max(segment * ring.segment_rows, ring.control.tail(lane))
        end = min(total, (segment + 1) * ring.segment_rows)
        if first < end:
            found.append(OpenRows(lane, segment, first, end - first, slot))
    return sorted(found, key=lambda run: (run.lane, run.first_row))


def _is_all_committed(ring: RingView) -> bool:
    totals = [ring.control.total_count(lane) for lane in range(ring.control.lanes)]
    return ring.cut_totals == totals


def _write(
    session: Session, workers: Workers, ring: RingView, rows: tuple[OpenRows, ...]
) -> Iterator[None]:
    line = ring.control.line
    name = names.PartName(line, ring.control.next_file_sequence())
    temporary = names.temporary_name(session.generation, name.text)

    def task() -> PartFile:
        ring.make_directory()
        return write_part(ring, rows, directory=ring.directory, name=temporary, line=line)

    future = workers.submit(task)
    while not future.done():
        yield
    part = future.result()
    try:
        durable.rename(ring.path(temporary), ring.path(name.text))
        durable.fsync_directory(ring.directory)
    except (OSError, NoSpaceError):
        for lost in (temporary, name.text):
            with contextlib.suppress(OSError):
                door.active.unlink(ring.path(lost))
        raise
    session.bytes_written += part.size_bytes
    logger.info("ring %s: %d open rows persisted", ring.name, sum(r.row_count for r in rows))
