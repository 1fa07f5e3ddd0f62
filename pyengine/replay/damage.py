"""A bad block of a mapped file: read again, then an error, or its rows are given up.

The native core stops at the block and says which. Here it is read a second time, past the page
cache where the kernel lets go of it: only what is wrong twice is damage. With `on_damage="raise"`
that is an error each time the block is touched. With "drop" its rows leave the ring, once and
loudly, and the call that met it is made again.
"""

from __future__ import annotations

import os
from typing import Literal

from pyengine._native.ring import BlockFault
from pyengine.errors import DamageError
from pyengine.events import logger
from pyengine.format.segment import block_rows
from pyengine.fs import door
from pyengine.fs.beneath import drop_cache
from pyengine.replay.faults import damage_error, is_unreadable
from pyengine.replay.storage import Storage

OnDamage = Literal["raise", "drop"]

_RECOVERIES_MAX = 3
"""So often may a block be bad once and right the second time; then it counts as bad."""


def settle_fault(storage: Storage, fault: BlockFault) -> bool:
    """Deal with a bad block; on return the call that met it can be made again.

    True: rows were dropped, by this or another thread. False: the block is right after all, or its
    segment has left the window. Raises DamageError, or OSError for a block that cannot be read;
    ClosedError where the storage was closed meanwhile. Blocks for one read of the block, and until
    other threads are done with theirs.
    """
    with storage.settling:
        second = _read_again(storage, fault)
        if second is None:
            return False
        error = damage_error(storage, second)
        is_damage = isinstance(error, DamageError) or is_unreadable(second.error_number)
        if storage.on_damage == "raise" or not is_damage:
            raise error from None
        rows = _rows_of(storage, second)
        drop_rows(storage, second.lane, rows.start, len(rows), error)
        return True


def build_marks(storage: Storage) -> None:
    """Read the start flags of all rows, for what spans rows; as `settle_fault` where one is bad."""
    while True:
        try:
            storage.core.build_marks()
            return
        except BlockFault as fault:
            settle_fault(storage, fault)


def has_valid_rows(storage: Storage, fault: BlockFault) -> bool:
    """Whether valid rows of the ring lie in a block."""
    rows = _rows_of(storage, fault)
    tail, total = storage.windows()[fault.lane]
    first = max(rows.start, tail)
    for lane, start, count in storage.core.dropped():
        if lane == fault.lane and start <= first < start + count:
            first = start + count
    return first < min(rows.stop, total)


def drop_rows(storage: Storage, lane: int, first: int, count: int, error: Exception) -> None:
    """Take rows out of the ring because of `error`, with a line in the log; aged-out ones are not
    there to be dropped."""
    dropped = storage.core.drop_rows(lane, first, count)
    if dropped:
        logger.error(
            "ring %s: %s. Dropped because of it: rows %d to %d of lane %d, %d of them valid until "
            'now (on_damage="drop"); they are neither sampled nor saved any more',
            storage.label,
            error,
            first,
            first + count - 1,
            lane,
            dropped,
        )


def _rows_of(storage: Storage, fault: BlockFault) -> range:
    """Return the ids of the rows that a block holds values of."""
    plan = storage.plan
    rows = block_rows(plan.layout, fault.block)
    start = fault.segment * plan.segment_rows
    return range(start + rows.start, start + min(rows.stop, plan.segment_rows))


def _read_again(storage: Storage, fault: BlockFault) -> BlockFault | None:
    """Return what is wrong with the block the second time; None: nothing."""
    core, lane, segment, block = storage.core, fault.lane, fault.segment, fault.block
    if fault.error_number and not is_unreadable(fault.error_number):
        return fault
    path = storage.paths.get((lane, segment))
    core.forget_segment(lane, segment)
    if path is not None:
        _forget_file(path)
    try:
        core.verify_blocks(lane, segment, block, block + 1)
    except BlockFault as second:
        return second
    key = (lane, segment, block)
    times = storage.recoveries[key] = storage.recoveries.get(key, 0) + 1
    if times > _RECOVERIES_MAX:
        return fault
    if path is not None:
        logger.warning(
            "ring %s: %s: the block at byte %d was wrong when it was read first and right when it "
            "was read again; look after the disk and the memory of this machine",
            storage.label,
            path,
            fault.offset,
        )
    return None


def _forget_file(path: str) -> None:
    try:
        fd = door.active.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return  # pruned meanwhile; the mapping is all there is
    try:
        drop_cache(fd)
    finally:
        door.active.close(fd)
