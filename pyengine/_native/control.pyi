from typing_extensions import Buffer

FileRecordTuple = tuple[int, int, int, int, int, int, int]
"""(line, lane, first_row, row_count, sequence, checksum, file_bytes) of a pool file."""

class Words:
    """`count` atomic 64-bit words at byte `offset` of a writable buffer (held while alive)."""

    count: int
    def __init__(self, buffer: Buffer, offset: int, count: int) -> None: ...
    def load(self, index: int) -> int:
        """Return a word (acquire)."""
    def store(self, index: int, value: int) -> None:
        """Set a word (release)."""
    def compare_exchange(self, index: int, expected: int, desired: int) -> bool:
        """Set a word to `desired` if it is `expected`; whether it was."""
    def release(self) -> None:
        """Let go of the buffer. A second call does nothing."""

class RingControl:
    """A view of the control block at the start of a ring's arena; the buffer is held while alive.

    Segment keys are segment * lanes + lane; slot states are pyengine.shm.states.SlotState.
    """

    lanes: int
    rows_per_lane: int
    segment_rows: int
    slot_count: int
    mutable_bytes: int
    arena_bytes: int
    table_length: int
    line: int
    """The line that new segments are written under."""

    def __init__(self, buffer: Buffer) -> None: ...
    @staticmethod
    def plan_bytes(
        lanes: int,
        rows_per_lane: int,
        segment_rows: int,
        slot_count: int,
        slot_bytes: int,
        blocks_per_segment: int,
        mutable_bytes: int,
    ) -> tuple[int, int, int]:
        """Return (arena bytes, mutable offset, slots offset)."""
    @staticmethod
    def create(
        buffer: Buffer,
        lanes: int,
        rows_per_lane: int,
        segment_rows: int,
        slot_count: int,
        slot_bytes: int,
        blocks_per_segment: int,
        mutable_bytes: int,
    ) -> RingControl:
        """Write a fresh control block into zeroed memory and return its view."""
    def release(self) -> None:
        """Let go of the buffer. A second call does nothing."""
    def tail(self, lane: int) -> int: ...
    def total_count(self, lane: int) -> int: ...
    def break_pending(self, lane: int) -> bool: ...
    def slot_word(self, slot: int) -> tuple[int, int]:
        """Return (segment key, state)."""
    def slots_in(self, state: int) -> list[tuple[int, int]]:
        """Return (slot, segment key) of every slot in `state`."""
    def move_slot(self, slot: int, key: int, from_state: int, to_state: int) -> bool:
        """Swap a slot's state if it still is (key, from_state); whether it was."""
    def slot_offset(self, slot: int) -> int:
        """Return the byte offset of a slot's image in the arena."""
    def set_slot_file(self, slot: int, record: FileRecordTuple) -> None:
        """Writer only: say which pool file holds the slot's segment, before PERSISTED."""
    def slot_file(self, slot: int) -> FileRecordTuple:
        """Return it; meaningful while the slot's word says (key, PERSISTED)."""
    def place(self, lane: int, segment: int) -> int | FileRecordTuple | None:
        """Return the slot that holds a segment, or its file, or None."""
    def next_file_sequence(self) -> int:
        """Return a pool file number that was never handed out before."""
    cold_reads: int
    """Blocks of mapped files that gathers wait for now; one that died left its own counted."""

    def mark_verified(self, lane: int, segment: int, first: int, end: int) -> None:
        """Note that the blocks [first, end) of a segment in a mapped file have their hashes."""
    def is_verified(self, lane: int, segment: int, first: int, end: int) -> bool:
        """Return whether all of them have."""
