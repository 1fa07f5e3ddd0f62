"""From a ring's cut to files: which rows lie in which file, and the buffer header that says so.

Rows of segments that are sealed by now are linked from the pool, the last one of a lane too where
it sealed after the cut: its later rows are simply in no extent. Rows of segments that are still
open go into a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyengine.errors import SnapshotFailedError
from pyengine.format import names
from pyengine.format.buffer_header import BufferHeader, DroppedRun, Extent, LaneRecord
from pyengine.format.descriptor import RingCut
from pyengine.shm.states import SlotState
from pyengine.writer.parts import OpenRows
from pyengine.writer.ring_view import RingView, pool_name
from pyengine.writer.segments import SegmentWriter
from pyengine.writer.session import Session

if TYPE_CHECKING:
    from pyengine._native.control import FileRecordTuple


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one segment that belong to a cut, without a hole."""

    segment: int
    lane: int
    first_row: int
    row_count: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """How the rows of a cut can be had: from files now, or from OPEN slots."""

    files: dict[Piece, FileRecordTuple]
    open: tuple[OpenRows, ...]
    new_rows: int


def pieces_of(cut: RingCut, segment_rows: int) -> list[Piece]:
    """Return the pieces of a cut, oldest segments first; dropped rows are in none."""
    pieces = []
    for lane, record in enumerate(cut.lanes):
        for first, end in _kept(record, [run for run in cut.dropped if run.lane == lane]):
            row = first
            while row < end:
                segment = row // segment_rows
                upto = min(end, (segment + 1) * segment_rows)
                pieces.append(Piece(segment, lane, row, upto - row))
                row = upto
    return sorted(pieces, key=lambda piece: (piece.segment, piece.lane, piece.first_row))


def _kept(lane: LaneRecord, dropped: Sequence[DroppedRun]) -> Iterator[tuple[int, int]]:
    """Yield [first, end) of a lane's rows around what was dropped, which comes in order."""
    first = lane.tail
    for run in dropped:
        if first < run.first_row:
            yield first, run.first_row
        first = run.first_row + run.row_count
    if first < lane.total_count:
        yield first, lane.total_count


class PieceFinder:
    """Finds the files of one ring's cut, and waits for those that are on their way."""

    def __init__(
        self, session: Session, ring: RingView, cut: RingCut, segments: SegmentWriter
    ) -> None:
        self._session = session
        self._ring = ring
        self._segments = segments
        self._waiting = pieces_of(cut, ring.segment_rows)
        self._cut = cut
        self._files: dict[Piece, FileRecordTuple] = {}
        self._open: list[OpenRows] = []
        self.slots: set[tuple[str, int]] = set()
        """(ring, slot) of the open rows, pinned until the caller is done with them."""

    def steps(self) -> Iterator[None]:
        """Run until every piece has a file or is open; each yield waits for an event.

        Raises SnapshotFailedError or the error of a segment that cannot be written.
        """
        # Every piece once over: the sealed ones have been started long ago, or start now.
        while self._waiting:
            if self._is_replaced():
                raise SnapshotFailedError(
                    f"ring {self._ring.name} was replaced by a restore before its rows were written"
                )
            self._waiting = [piece for piece in self._waiting if not self._resolve(piece)]
            if self._waiting:
                yield

    def _is_replaced(self) -> bool:
        """Whether the rows of the cut lie in another arena than the ring's present one."""
        present = self._session.rings.get(self._ring.name)
        if present is not self._ring:
            return True
        return self._cut.arena is not None and self._cut.arena != present.arena.identity

    def result(self) -> Pieces:
        """Return what was found."""
        return Pieces(self._files, tuple(self._open), self._count_new_rows())

    def release(self) -> None:
        """Let the slots of the open rows be persisted again."""
        self._segments.pinned -= self.slots
        self.slots.clear()

    def _resolve(self, piece: Piece) -> bool:
        ring = self._ring
        found = ring.slot_state(piece.lane, piece.segment)
        if found is not None and found[1] == SlotState.OPEN:
            self._pin(piece, found[0])
            return True
        record = ring.find_file(piece.lane, piece.segment)
        if record is None:
            error = self._segments.failure(ring, ring.key(piece.lane, piece.segment))
            if error is not None:
                raise error
            return False
        first_row, row_count = record[2], record[3]
        if (
            not first_row
            <= piece.first_row
            <= piece.first_row + piece.row_count
            <= (first_row + row_count)
        ):
            raise SnapshotFailedError(f"ring {ring.name}: {pool_name(record)} lacks rows {piece}")
        self._files[piece] = record
        return True

    def _pin(self, piece: Piece, slot: int) -> None:
        """Keep an open segment from being persisted, and so from being freed, until the part is
        written. Main thread, so nothing has begun with the slot since it was seen OPEN."""
        place = (self._ring.name, slot)
        self.slots.add(place)
        self._segments.pinned.add(place)
        self._open.append(
            OpenRows(piece.lane, piece.segment, piece.first_row, piece.row_count, slot)
        )

    def _count_new_rows(self) -> int:
        """Rows that neither the snapshot before had nor a restore brought."""
        former = self._ring.cut_totals or self._ring.restored_totals
        return sum(
            max(0, record.total_count - max(record.tail, known))
            for record, known in zip(self._cut.lanes, former, strict=True)
        )


def buffer_header(
    cut: RingCut,
    line: str,
    files: dict[Piece, FileRecordTuple],
    parts: list[tuple[str, tuple[OpenRows, ...]]],
) -> BufferHeader:
    """Return the header of a cut whose rows lie in pool files and in parts (name, rows)."""
    extents = [
        Extent(
            piece.lane,
            piece.first_row,
            piece.row_count,
            names.segment_link_name(pool_name(record)),
            piece.first_row - record[2],
        )
        for piece, record in files.items()
    ]
    for name, runs in parts:
        at = 0
        for run in runs:
            extents.append(Extent(run.lane, run.first_row, run.row_count, name, at))
            at += run.row_count
    extents.sort(key=lambda extent: (extent.lane, extent.first_row))
    header = cut.header
    return BufferHeader(
        ring=cut.name,
        schema=header["schema"],
        capacity=header["capacity"],
        num_lanes=header["num_lanes"],
        segment_rows=header["segment_rows"],
        line=line,
        lanes=cut.lanes,
        extents=tuple(extents),
        dropped=cut.dropped,
        sampler=header["sampler"],
        mutable_file=cut.mutable_file.rsplit("/", 1)[-1] if cut.mutable_file else None,
    )
