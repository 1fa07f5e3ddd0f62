"""Segments leave memory for their files, so that a ring may be larger than what it may take.

The oldest of the PERSISTED ones go: each is mapped from its pool file, header and block table
proven first, and then, under the ring's lock, lives there; its slot is free. What cannot be mapped
stays in memory, and is told.

Threads that keep slots free, appends that meet none, and signal handlers in the midst of either may
be here at once. There is no lock: every step may be done twice. A mapping that was put into the
table of mappings goes when its rows have aged out, as all of them do, whoever has used it.
"""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

from pyengine._native.control import RingControl
from pyengine._native.mapping import Mapping as MemoryMapping
from pyengine._native.ring import RingCore
from pyengine.errors import DamageError, PyengineError
from pyengine.events import logger, warn_once
from pyengine.format import names
from pyengine.replay.plan import RingPlan
from pyengine.replay.segment_files import SegmentFile, SegmentFiles, holds_segment
from pyengine.shm.states import SlotState

if TYPE_CHECKING:
    from pyengine._native.control import FileRecordTuple

_UNWRITTEN = (SlotState.SEALED, SlotState.PERSISTING, SlotState.WRITTEN)
_RETRY_SECONDS = 10.0
"""After so long a segment whose file could not be mapped is tried again."""

_OF_THE_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What ails no single file: no other one could be mapped either."""


class Spiller:
    """Moves segments of one ring's storage, which owns all that is given here, to files.

    `pool` is the directory that an engine's writer puts them into; None while there is none.
    """

    def __init__(
        self,
        plan: RingPlan,
        core: RingCore,
        control: RingControl,
        mapped: dict[tuple[int, int], MemoryMapping],
        paths: dict[tuple[int, int], str],
    ) -> None:
        self.pool: str | None = None
        self.cause = ""
        """Why a segment could not leave memory, the last time that one could not."""
        self._plan = plan
        self._core = core
        self._control = control
        self._mapped = mapped
        self._paths = paths
        self._retry_at: dict[tuple[int, int], float] = {}
        self._warned: set[str] = set()

    @property
    def is_possible(self) -> bool:
        """Whether full segments go to files: an engine tracks the ring, and its run has begun."""
        return self.pool is not None and self._control.line != 0

    def unwritten(self) -> int:
        """Return how many full segments could be spilled once they were written."""
        if not self.is_possible:
            return 0
        return sum(len(self._control.slots_in(state)) for state in _UNWRITTEN)

    def missing(self, ahead: int) -> int:
        """Return how many slots are too few for `ahead`, and one a lane, to be free.

        At most half of what the open segments leave are kept so: the rest holds rows.
        """
        ready, reserved = self._core.slots()
        lanes = self._plan.num_lanes
        return max(1, min(max(ahead, lanes), (reserved - lanes) // 2)) - ready

    def spill(self, count: int) -> int:
        """Free up to `count` slots, the oldest segments first; return how many were freed.

        Reads header and block table of each file, and waits for nothing else. ClosedError.
        """
        freed = 0
        if not self.is_possible:
            return freed
        lanes, rows = self._control.lanes, self._plan.segment_rows
        persisted = self._control.slots_in(SlotState.PERSISTED)
        for slot, key in sorted(persisted, key=lambda item: item[1]):
            if freed >= count:
                break
            segment, lane = divmod(key, lanes)
            record = self._control.slot_file(slot)
            if self._control.slot_word(slot) != (key, SlotState.PERSISTED):
                continue  # aged out meanwhile, and the record may be another's
            if (segment + 1) * rows <= self._control.tail(lane):
                continue  # a snapshot holds it still
            if self._retry_at.get((lane, segment), 0.0) > time.monotonic():
                continue
            try:
                mapping = self._map(lane, segment, record)
            except (OSError, PyengineError) as error:
                if not self._refuse(lane, segment, error):
                    break
            else:
                freed += self._core.spill_segment(lane, segment, mapping.address)
        return freed

    def _map(self, lane: int, segment: int, record: FileRecordTuple) -> MemoryMapping:
        """Return the mapping of a segment's file, which is in the table then."""
        key = (lane, segment)
        known = self._mapped.get(key)
        if known is not None:
            return known
        assert self.pool is not None
        path = os.path.join(self.pool, names.PoolName(*record[:5]).text)
        with SegmentFiles({path: SegmentFile(path, record[5], record)}, self._plan) as opened:
            mapping = opened.map(path)
            try:
                if not holds_segment(opened.prove(path), self._plan, lane, segment):
                    raise DamageError(
                        f"{path}: does not hold segment {segment} of lane {lane}",
                        path=path,
                        offset=0,
                    )
            except BaseException:
                mapping.close()
                raise
        self._paths[key] = path
        kept = self._mapped.setdefault(key, mapping)
        if kept is not mapping:
            mapping.close()
        return kept

    def _refuse(self, lane: int, segment: int, error: Exception) -> bool:
        """Note why a segment stays in memory; whether others may fare better."""
        self.cause = str(error)
        number = error.errno if isinstance(error, OSError) else None
        if number in _OF_THE_PROCESS:
            if number == errno.ENOMEM:
                self.cause += (
                    f" (the process has {len(self._mapped)} segment files mapped: see "
                    "vm.max_map_count, and the limit of its address space)"
                )
            warn_once(self._warned, str(number), "segments stay in memory for now: %s", self.cause)
            return False
        if (lane, segment) not in self._retry_at:
            logger.warning(
                "segment %d of lane %d stays in memory: its file is not what was written: %s",
                segment,
                lane,
                error,
            )
        self._retry_at[lane, segment] = time.monotonic() + _RETRY_SECONDS
        return True
