"""What the native core could not do, as the errors that people meet."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from pyengine._native.ring import BlockFault, BrokenStack, NoMemory
from pyengine.errors import BrokenStackError, DamageError, SharedMemoryError, TruncatedFileError
from pyengine.fs.limits import explain
from pyengine.shm.headroom import headroom

if TYPE_CHECKING:
    from pyengine.format.schema import Schema
    from pyengine.replay.storage import Storage

_EHWPOISON = 133
"""Memory that the machine found broken; the errno module does not name it."""

_UNREADABLE = (errno.EIO, errno.EFAULT, _EHWPOISON)


def is_unreadable(error_number: int | None) -> bool:
    """Whether an error number says that bytes of a file cannot be had, and not that time, memory or
    rights were lacking."""
    return error_number in _UNREADABLE


def unreadable_error(error_number: int | None, offset: int, path: str) -> OSError:
    """Return the error for bytes that cannot be read."""
    number = error_number or errno.EIO
    return OSError(
        number,
        f"{os.strerror(number)} at byte {offset} (a bad sector, or the file was cut while it was "
        "mapped)",
        path,
    )


def damage_error(storage: Storage, fault: BlockFault) -> DamageError | OSError:
    """Return the error for a mapped block: DamageError, or OSError where it cannot be read.

    A file that is shorter than it was mapped is a TruncatedFileError.
    """
    path = storage.paths.get((fault.lane, fault.segment), "an unknown segment file")
    if fault.error_number:
        return _truncation(storage, path) or unreadable_error(
            fault.error_number, fault.offset, path
        )
    return DamageError(
        f"{path}: the block at byte {fault.offset} does not have the hash that its table records; "
        "its rows were not handed out",
        path=path,
        offset=fault.offset,
        expected=f"{fault.expected:016x}",
        got=f"{fault.got:016x}",
    )


def _truncation(storage: Storage, path: str) -> TruncatedFileError | None:
    expected = storage.plan.layout.file_bytes
    with contextlib.suppress(OSError):
        size = os.stat(path, follow_symlinks=False).st_size
        if size < expected:
            return TruncatedFileError(
                f"{path}: the file was cut while it was mapped: {size} bytes are left of "
                f"{expected}",
                path=path,
                offset=size,
                expected=expected,
                got=size,
            )
    return None


def no_memory_error(label: str, storage: Storage, fault: NoMemory) -> SharedMemoryError:
    """Return the error for a segment slot that shared memory had no room for."""
    needed, free = storage.plan.layout.file_bytes, headroom()
    return SharedMemoryError(
        f"{label}: the next segment needs {needed} bytes of shared memory, {free} are free "
        f"({explain(fault.error_number)}); the row was not added. Enlarge /dev/shm or the "
        "container's limit, or lower the capacity",
        needed_bytes=needed,
        free_bytes=free,
    )


def no_slot_error(
    label: str, storage: Storage, cause: str, refusal: SharedMemoryError | None
) -> SharedMemoryError:
    """Return the error for a row that no slot became free for; `refusal` is why none was made."""
    limit, stuck = storage.plan.memory_limit, storage.spiller.cause
    if stuck:
        cause += f"; segments could not leave memory: {stuck}"
    if refusal is not None:
        return SharedMemoryError(
            f"{refusal}; {cause}",
            needed_bytes=refusal.needed_bytes,
            free_bytes=refusal.free_bytes,
        )
    bounded = "" if limit is None else f" and memory_limit={limit} allows no more"
    return SharedMemoryError(
        f"{label}: every segment slot is in use{bounded}; {cause}",
        needed_bytes=storage.plan.layout.file_bytes,
        free_bytes=0,
    )


def limit_error(label: str, storage: Storage, is_tracked: bool) -> SharedMemoryError:
    """Return the error for a limited ring that has no files to let its segments live in."""
    what = (
        "the run of its engine has not begun: call engine.restore()"
        if is_tracked
        else "no engine tracks the ring: engine.track(...) it"
    )
    return SharedMemoryError(
        f"{label}: memory_limit={storage.plan.memory_limit} is reached, and segments beyond it "
        f"live in the files of an engine's run, but {what} before so many rows are added; the row "
        "was not added",
        needed_bytes=storage.plan.layout.file_bytes,
        free_bytes=0,
    )


def broken_stack_error(schema: Schema, fault: BrokenStack) -> BrokenStackError:
    """Return the error for a next observation that does not follow."""
    pair = schema.stacks[fault.pair]
    return BrokenStackError(
        f"field {pair.next_obs!r}, step {fault.step}, lane {fault.lane}: its first "
        f"{pair.depth - 1} frames are not the last ones of {pair.obs!r}, so that a row cannot keep "
        "one frame of it. Give the observation that the action led to (of an environment that "
        "resets in the same step: the final one in its info), or declare both fields without stack",
        field=pair.next_obs,
        expected=f"{pair.obs}[1:] == {pair.next_obs}[:-1]",
        got=(fault.step, fault.lane),
    )
