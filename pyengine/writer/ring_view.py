"""A ring as the writer sees it: its control block, its slots, and where its files lie.

Built from the arena alone, so that a restarted writer finds everything again; nothing touches the
disk here before a file is written. The trainer may free any slot but an OPEN one between two looks;
whoever reads a slot looks at its word again afterwards.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyengine._native.control import RingControl
from pyengine.catalog.generation import check_not_replaced
from pyengine.catalog.pool import pool_directory
from pyengine.errors import SnapshotFailedError
from pyengine.format import names
from pyengine.format.schema import Schema
from pyengine.format.segment import SegmentLayout, plan_layout
from pyengine.fs import durable
from pyengine.shm.arena import Arena
from pyengine.shm.states import SlotState

if TYPE_CHECKING:
    from pyengine._native.control import FileRecordTuple


class RingView:
    """One ring; owns its arena and the eventfd that tells of sealed segments."""

    def __init__(
        self,
        name: str,
        arena: Arena,
        seal_event: int,
        *,
        schema: Mapping[str, Any],
        run_dir: str,
        generation: int,
    ) -> None:
        self.name = name
        self.arena = arena
        self.seal_event = seal_event
        self.control = RingControl(arena.mapping)
        self.schema = Schema.from_record(schema)
        self.layout: SegmentLayout = plan_layout(
            self.schema.append_fields, self.control.segment_rows
        )
        self.directory = pool_directory(run_dir, name)
        self._claim = (run_dir, generation)
        self.restored_totals = [0] * self.control.lanes
        """Rows per lane that files held when the ring was handed over: a restore brought them."""
        self.lines: set[int] = self._look_at_files()
        """Lines that files which the ring has or had were written under."""
        self.cut_totals: list[int] | None = None
        """Rows per lane that the newest committed snapshot ends with."""

    @property
    def segment_rows(self) -> int:
        """Rows of a segment."""
        return self.control.segment_rows

    def key(self, lane: int, segment: int) -> int:
        """Return the key of a segment in slot words."""
        return segment * self.control.lanes + lane

    def image(self, slot: int) -> memoryview:
        """Return the bytes of a slot that become its file."""
        return self.arena.view(self.control.slot_offset(slot), self.layout.file_bytes)

    def slot_state(self, lane: int, segment: int) -> tuple[int, SlotState] | None:
        """Return (slot, state) of a segment in memory, or None where it lives in a file.

        SnapshotFailedError where the ring no longer has the segment.
        """
        key = self.key(lane, segment)
        while True:
            place = self.control.place(lane, segment)
            if place is None:
                raise SnapshotFailedError(
                    f"ring {self.name}: segment {segment} of lane {lane} is no longer there"
                )
            if isinstance(place, tuple):
                return None
            found, state = self.control.slot_word(place)
            if found == key and state != SlotState.FREE:
                return place, SlotState(state)

    def find_file(self, lane: int, segment: int) -> FileRecordTuple | None:
        """Return the pool file that holds a segment, or None while it is not persisted.

        SnapshotFailedError where the ring no longer has the segment.
        """
        key = self.key(lane, segment)
        while True:
            place = self.control.place(lane, segment)
            if isinstance(place, tuple):
                return place
            found = self.slot_state(lane, segment)
            if found is None:
                continue
            slot, state = found
            if state != SlotState.PERSISTED:
                return None
            record = self.control.slot_file(slot)
            if self.control.slot_word(slot) == (key, SlotState.PERSISTED):
                return record

    def _look_at_files(self) -> set[int]:
        control = self.control
        lines = {control.slot_file(slot)[0] for slot, _ in control.slots_in(SlotState.PERSISTED)}
        for lane in range(control.lanes):
            first = control.tail(lane) // self.segment_rows
            end = -(-control.total_count(lane) // self.segment_rows)
            for segment in range(first, end):
                place = control.place(lane, segment)
                if isinstance(place, tuple):
                    lines.add(place[0])
                    self.restored_totals[lane] = (segment + 1) * self.segment_rows
        return lines

    def take_back(self) -> None:
        """Undo what a dead writer had begun: its files may be half-written, or not durable."""
        for state in (SlotState.PERSISTING, SlotState.WRITTEN):
            for slot, key in self.control.slots_in(state):
                self.control.move_slot(slot, key, state, SlotState.SEALED)

    def path(self, name: str) -> str:
        """Return the path of a file in the pool."""
        return os.path.join(self.directory, name)

    def make_directory(self) -> None:
        """Make the ring's directory in the pool where it is not there; any thread.

        Whoever writes into it calls this, so that a failure is that of a write, and made good as
        one. Raises StaleGenerationError where another run has the path now, FileNotFoundError where
        the run is gone: it is not begun again. NoSpaceError, OSError.
        """
        check_not_replaced(*self._claim)
        run_dir = self._claim[0]
        if not os.path.isdir(run_dir):
            raise FileNotFoundError(errno.ENOENT, "the run was moved or removed", run_dir)
        durable.make_directory(self.directory)

    def close(self) -> None:
        """Let go of the arena and the eventfd."""
        self.control.release()
        self.arena.close()
        event, self.seal_event = self.seal_event, -1
        if event >= 0:
            os.close(event)


def pool_name(record: FileRecordTuple) -> str:
    """Return the name of a record's file in the pool."""
    line, lane, first_row, row_count, sequence = record[:5]
    return names.PoolName(line, lane, first_row, row_count, sequence).text
