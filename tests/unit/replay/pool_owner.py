"""A ring's engine whose writer is the test itself: segments go to disk when they are told to."""

from __future__ import annotations

import struct
import weakref
from pathlib import Path

from idle_owner import IdleOwner

from pyengine import ReplayBuffer
from pyengine._native.hashing import seal_image
from pyengine.format.names import PoolName
from pyengine.format.segment import set_counts
from pyengine.shm.states import SlotState

LINE = 7
_LINE_OFFSET = 16


class PoolOwner(IdleOwner):
    """Tracks `ring`; whoever waits for a slot has what is sealed written, unless `is_stopped`."""

    def __init__(self, ring: ReplayBuffer, directory: Path, *, line: int = LINE, **options):
        self.ring = weakref.proxy(ring)  # else both go at some garbage collection
        self.directory = directory
        self.is_stopped = False
        ring.bind(self, "replay", line=line, pool=str(directory), **options)

    def poll(self):
        if not self.is_stopped:
            self.persist()

    def persist(self, most: int | None = None) -> int:
        """Bring sealed segments, the oldest first, to the pool; return how many."""
        control = self.ring.control
        sealed = sorted(control.slots_in(SlotState.SEALED), key=lambda item: item[1])[:most]
        for slot, key in sealed:
            self.persist_slot(slot, key)
        return len(sealed)

    def persist_slot(self, slot: int, key: int) -> None:
        storage, control = self.ring.storage, self.ring.control
        layout, rows = storage.plan.layout, storage.plan.segment_rows
        assert control.move_slot(slot, key, SlotState.SEALED, SlotState.PERSISTING)
        image = storage.arena.view(control.slot_offset(slot), layout.file_bytes)
        set_counts(image, layout, rows)
        struct.pack_into("<Q", image, _LINE_OFFSET, LINE)
        checksum = seal_image(image)
        segment, lane = divmod(key, control.lanes)
        name = PoolName(LINE, lane, segment * rows, rows, control.next_file_sequence())
        (self.directory / name.text).write_bytes(image)
        assert control.move_slot(slot, key, SlotState.PERSISTING, SlotState.WRITTEN)
        record = (LINE, lane, segment * rows, rows, name.sequence, checksum, layout.file_bytes)
        control.set_slot_file(slot, record)
        assert control.move_slot(slot, key, SlotState.WRITTEN, SlotState.PERSISTED)
