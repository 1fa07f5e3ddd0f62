# What the native core could not do, as exceptions.

from ring_native cimport (
    PE_BAD_PRIORITY, PE_BUSY, PE_CLOSED, PE_DAMAGED, PE_DROPPED, PE_EMPTY, PE_NO_MEMORY,
    PE_NO_PRIORITY, PE_NO_SLOT, PE_NO_WINDOW, PE_OK, PE_UNKNOWN_REF, PE_UNREADABLE, pe_fault,
    pe_status,
)

from pyengine.errors import (
    ClosedError, DroppedRowError, EmptyRingError, PriorityError, UnknownRefError,
)


class BlockFault(Exception):
    """A mapped block that cannot be read (`error_number`) or whose hash differs (0)."""

    def __init__(self, lane, segment, offset, block, expected, got, error_number):
        super().__init__(f"lane {lane}, segment {segment}, byte {offset}")
        self.lane = lane
        self.segment = segment
        self.offset = offset
        self.block = block
        self.expected = expected
        self.got = got
        self.error_number = error_number


class NoMemory(Exception):
    """Shared memory had no room for a segment slot; `error_number` says why."""

    def __init__(self, error_number):
        super().__init__(error_number)
        self.error_number = error_number


class BrokenStack(Exception):
    """next_obs of a pair does not follow its obs, in the row of this step and lane."""

    def __init__(self, pair, step, lane):
        super().__init__(f"pair {pair}, step {step}, lane {lane}")
        self.pair = pair
        self.step = step
        self.lane = lane


cdef int _report(pe_status status, const pe_fault *fault) except -1:
    """Turn a status into an exception: the one place that does."""
    if status == PE_OK or status == PE_NO_SLOT:
        return 0
    if status == PE_NO_MEMORY:
        raise NoMemory(<int>fault.got)
    if status == PE_BUSY:
        raise RuntimeError("the ring's lock is already held by this thread")
    if status == PE_CLOSED:
        raise ClosedError("the ring was closed")
    if status == PE_UNKNOWN_REF:
        raise UnknownRefError(f"ref {fault.row} names no row of the ring's window",
                              field="refs", expected="a ref in the window", got=fault.row)
    if status == PE_EMPTY:
        raise EmptyRingError("the ring holds no row yet")
    if status == PE_NO_PRIORITY:
        raise EmptyRingError("no row of the ring can be drawn: all of their priorities are 0")
    if status == PE_BAD_PRIORITY:
        raise PriorityError(
            f"priority {fault.row} (counted from 0) is negative, infinite or NaN; nothing was changed",
            field="priorities", expected="finite float32 values of at least 0", got=fault.row)
    if status == PE_NO_WINDOW:
        raise EmptyRingError("no sequence of the ring is as long as was asked for; take shorter "
                             "windows, or pad=True")
    if status == PE_DAMAGED:
        raise BlockFault(fault.lane, fault.segment, fault.offset, fault.block, fault.expected,
                         fault.got, 0)
    if status == PE_UNREADABLE:
        raise BlockFault(fault.lane, fault.segment, fault.offset, fault.block, None, None,
                         <int>fault.got)
    if status == PE_DROPPED:
        raise DroppedRowError(
            f"ref {fault.row} names a row that was dropped: its block of a segment file is damaged",
            field="refs", expected="a ref that `refs()` lists", got=fault.row)
    raise MemoryError
