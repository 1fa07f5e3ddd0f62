"""The end of a run as the writer sees it: nothing that was published may be lost.

Runs when the trainer died or closed. Staged snapshots and sealed segments are written by the usual
ways; what is left are the published rows of open segments, which become one part a ring in the
pool.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from pyengine.errors import PyengineError
from pyengine.events import logger
from pyengine.format import names
from pyengine.fs import door, durable
from pyengine.shm.states import SlotState
from pyengine.writer.parts import OpenRows, spread, write_part
from pyengine.writer.ring_view import RingView
from pyengine.writer.session import Session
from pyengine.writer.workers import Workers


def seal_full_segments(session: Session) -> None:
    """With a dead trainer: seal what it filled and had no time to seal."""
    for ring in session.rings.values():
        for slot, key in ring.control.slots_in(SlotState.OPEN):
            segment, lane = divmod(key, ring.control.lanes)
            if (segment + 1) * ring.segment_rows <= ring.control.total_count(lane):
                ring.control.move_slot(slot, key, SlotState.OPEN, SlotState.SEALED)


def drain_steps(session: Session, workers: Workers) -> Iterator[None]:
    """Persist the published open rows of all rings; each yield waits for an event.

    Rows that the newest committed snapshot holds already are left out with their ring. Errors are
    logged: there is nobody left to raise them to.
    """
    for ring in session.rings.values():
        rows = open_rows(ring)
        if not rows or _is_all_committed(ring):
            continue
        for group in spread(ring, rows):
            try:
                yield from _write(session, workers, ring, group)
            except (OSError, PyengineError) as error:
                logger.error("ring %s: open rows could not be persisted: %s", ring.name, error)


def open_rows(ring: RingView) -> list[OpenRows]:
    """Return the published rows of open segments, by lane."""
    found = []
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
    task = partial(write_part, ring, rows, directory=ring.directory, name=temporary, line=line)
    future = workers.submit(task)
    while not future.done():
        yield
    part = future.result()
    try:
        door.active.rename(ring.path(temporary), ring.path(name.text))
    except OSError:
        with contextlib.suppress(OSError):
            door.active.unlink(ring.path(temporary))
        raise
    durable.fsync_directory(ring.directory)
    session.bytes_written += part.size_bytes
    logger.info("ring %s: %d open rows persisted", ring.name, sum(r.row_count for r in rows))
