"""The double buffer: two staging arenas, one being filled while the other is written.

An arena is made at the first capture that goes into it and made anew, a little larger, when a
capture does not fit. That happens only while the slot is ours (STAGING), so the writer never reads
from an arena that goes away; it gets the new one under a new version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyengine.config import PAGE_BYTES
from pyengine.engine.critical import run_whole
from pyengine.shm.arena import Arena
from pyengine.shm.control import EngineControl, Entry
from pyengine.shm.states import StagingState

_GRAIN_BYTES = 64 * 1024


@dataclass(slots=True)
class StagingSlot:
    """One staging slot: its entry in the control block and its memory, if it has any yet."""

    entry: Entry
    arena: Arena | None = None
    version: int = 0


class StagingBuffers:
    """The two slots of an engine; owns their arenas.

    `on_arena(index, version, arena)` is called for each arena before anything is staged in it.
    """

    def __init__(self, control: EngineControl, on_arena: Callable[[int, int, Arena], None]) -> None:
        self._slots = tuple(StagingSlot(entry) for entry in control.entries)
        self._on_arena = on_arena

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
        """Free slots that were claimed and never staged: an exception came right in between."""
        for slot in self._slots:
            sequence, state = slot.entry.staging
            if state == StagingState.STAGING:
                slot.entry.cancel(sequence)
                slot.entry.move_staging(sequence, state, StagingState.FREE)

    def fit(self, slot: StagingSlot, required_bytes: int) -> Arena:
        """Return the claimed slot's arena with at least `required_bytes` of reserved memory.

        Raises SharedMemoryError; the slot keeps its former arena then.
        """
        if slot.arena is not None and slot.arena.size_bytes >= required_bytes:
            return slot.arena
        # Head room, so that entries of changing size do not make a new arena each time.
        size = required_bytes + required_bytes // 16 + _GRAIN_BYTES
        arena = _reserved(-(-size // PAGE_BYTES) * PAGE_BYTES, f"staging-{slot.entry.index}")
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
        for slot in self._slots:
            arena, slot.arena = slot.arena, None
            if arena is not None:
                arena.close()


def _reserved(size_bytes: int, label: str) -> Arena:
    arena = Arena.create(size_bytes, label)
    try:
        arena.reserve(0, size_bytes)
        arena.mapping.populate(0, size_bytes, True)
    except BaseException:
        arena.close()
        raise
    return arena
