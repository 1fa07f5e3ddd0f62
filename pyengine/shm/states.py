"""The state machines that trainer and writer share: one atomic 64-bit word each.

    segment slot   FREE -> OPEN -> SEALED -> PERSISTING -> WRITTEN -> PERSISTED
                   the trainer may take any state but OPEN to FREE; PERSISTING and WRITTEN of a
                   failed or dead writer go back to SEALED
    staging slot   FREE -> STAGING -> STAGED -> WRITING -> FREE
                   STAGING -> FREE (exception, owner dead), WRITING -> STAGED (writer dead)
    snapshot       PENDING -> COMMITTING -> COMMITTED | FAILED, PENDING -> FAILED,
                   PENDING -> CANCELLED (by the trainer), COMMITTING -> PENDING (writer dead and no
                   manifest on disk)

A word is (tag << 8) | state: the tag (segment key or snapshot sequence) makes a swap fail when the
place was given to somebody else meanwhile. Words are moved by compare-and-swap only, but for a
snapshot's new PENDING: it is stored by the trainer, who has claimed the staging slot beside it.
"""

from __future__ import annotations

from enum import IntEnum

_STATE_BITS = 8


class SlotState(IntEnum):
    """State of a segment slot; the tag is the segment key, n * lanes + lane."""

    FREE = 0
    OPEN = 1
    SEALED = 2
    PERSISTING = 3
    WRITTEN = 4
    PERSISTED = 5


class StagingState(IntEnum):
    """State of a staging slot; the tag is the snapshot's sequence."""

    FREE = 0
    STAGING = 1
    STAGED = 2
    WRITING = 3


class SnapshotState(IntEnum):
    """State of a snapshot; the tag is its sequence."""

    NONE = 0
    PENDING = 1
    COMMITTING = 2
    COMMITTED = 3
    FAILED = 4
    CANCELLED = 5

    @property
    def is_terminal(self) -> bool:
        """Whether the snapshot's fate is decided."""
        return self in (SnapshotState.COMMITTED, SnapshotState.FAILED, SnapshotState.CANCELLED)


def pack_word(tag: int, state: int) -> int:
    """Return the word of `tag` (below 2**56) in `state`."""
    return tag << _STATE_BITS | state


def unpack_word(word: int) -> tuple[int, int]:
    """Return (tag, state) of a word."""
    return word >> _STATE_BITS, word & ((1 << _STATE_BITS) - 1)
