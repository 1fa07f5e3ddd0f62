"""The double buffer: two staging arenas, one being filled while the other is written.

A slot gets an arena, a spare one that is ready or else a new one, when the first capture goes into
it, and another, a little larger, when a capture does not fit. That happens only while the slot is
ours (STAGING), so the writer never reads from an arena that goes away; it gets the new one under a
new version. A slot may be filled late, after its snapshot's tick has returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyengine.config import PAGE_BYTES
from pyengine.engine.critical import run_whole
from pyengine.engine.late import BackgroundCopier, LateStaging
from pyengine.engine.spare import SpareArena
from pyengine.shm.arena import Arena
from pyengine.shm.control import EngineControl, Entry
from pyengine.shm.states import StagingState

_GRAIN_BYTES = 64 * 1024
_HEAD_ROOM_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class StagingSlot:
    """One staging slot: its entry in the control block and its memory, if it has any yet.

    `late` is the copy that its newest snapshot left for later, until the next one's replaces it.
    """

    entry: Entry
    arena: Arena | None = None
    version: int = 0
    late: LateStaging | None = None


class StagingBuffers:
    """The two slots of an engine; owns their arenas and the thread that fills them late.

    `on_arena(index, version, arena)` is called for each arena before anything is staged in it.
    """

    def __init__(self, control: EngineControl, on_arena: Callable[[int, int, Arena], None]) -> None:
        self._slots = tuple(StagingSlot(entry) for entry in control.entries)
        self._on_arena = on_arena
        self._spare = SpareArena()
        self._copier = BackgroundCopier()

    @property
    def slots(self) -> tuple[StagingSlot, ...]:
        """Both slots."""
        return self._slots

    def claim(self, sequence: int) -> StagingSlot | None:
        """Take a free slot for a snapshot (FREE -> STAGING); None while both are in use."""
        # One with memory first: the second arena is made only when two snapshots overlap.
        for slot in sorted(self._slots, key=lambda slot: slot.arena is None):
            if slot.entry.claim(sequence):
                return slot
        return None

    def give_up_claims(self) -> None:
        """Free slots that were claimed and never staged: an exception came right in between.

        One that is filled late is staged as far as its tick goes.
        """
        for slot in self._slots:
            sequence, state = slot.entry.staging
            is_late = slot.late is not None and not slot.late.is_settled
            if state == StagingState.STAGING and not is_late:
                slot.entry.cancel(sequence)
                slot.entry.move_staging(sequence, state, StagingState.FREE)

    def begin_late(self, slot: StagingSlot, late: LateStaging) -> None:
        """Have a slot, whose snapshot is PENDING, filled and published in the background."""
        slot.late = late
        self._copier.start(late)

    @property
    def is_late(self) -> bool:
        """Whether a slot is still to be filled."""
        return any(slot.late is not None and not slot.late.is_settled for slot in self._slots)

    def finish_late(self) -> None:
        """Fill and publish now what waits for it; blocks for that copy at most. Any thread."""
        for slot in self._slots:
            late = slot.late
            if late is not None and not late.is_settled:
                run_whole(late.finish)

    def stop_late(self) -> None:
        """Fill no further what was given up meanwhile. Does not block."""
        for slot in self._slots:
            late = slot.late
            if late is not None:
                late.stop()

    def make_ahead(self, required_bytes: int) -> None:
        """Begin to make memory, off the hot path, for the next slot that needs some."""
        arenas = [slot.arena for slot in self._slots]
        if any(arena is None or arena.size_bytes < required_bytes for arena in arenas):
            self._spare.want(_size_for(required_bytes))

    def fit(self, slot: StagingSlot, required_bytes: int) -> Arena:
        """Return the claimed slot's arena with at least `required_bytes` of reserved memory.

        Raises SharedMemoryError; the slot keeps its former arena then.
        """
        if slot.arena is not None and slot.arena.size_bytes >= required_bytes:
            return slot.arena
        arena = self._spare.take(required_bytes)
        if arena is None:
            arena = _reserved(_size_for(required_bytes), f"staging-{slot.entry.index}")
        run_whole(lambda: self._replace(slot, arena))
        return arena

    def _replace(self, slot: StagingSlot, arena: Arena) -> None:
        former, slot.arena = slot.arena, arena
        slot.version += 1
        self._on_arena(slot.entry.index, slot.version, arena)
        if former is not None:
            former.close()

    def close(self) -> None:
        """Let go of both arenas. Idempotent; the writer keeps its own hold while it needs one."""
        self._copier.close()
        self._spare.close()
        for slot in self._slots:
            arena, slot.arena = slot.arena, None
            if arena is not None:
                arena.close()


def _size_for(required_bytes: int) -> int:
    """Return the size of an arena: head room, so that what grows does not take a new one each time;
    not in proportion where that would be much memory."""
    head_room = min(required_bytes // 16, _HEAD_ROOM_BYTES) + _GRAIN_BYTES
    return -(-(required_bytes + head_room) // PAGE_BYTES) * PAGE_BYTES


def _reserved(size_bytes: int, label: str) -> Arena:
    arena = Arena.create(size_bytes, label)
    try:
        arena.reserve(0, size_bytes)
        arena.mapping.populate(0, size_bytes, True)
    except BaseException:
        arena.close()
        raise
    return arena
