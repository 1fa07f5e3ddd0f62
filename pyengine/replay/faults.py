"""What the native core could not do, as the errors that people meet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyengine._native.ring import BlockFault, NoMemory
from pyengine.errors import DamageError, SharedMemoryError
from pyengine.shm.headroom import headroom

if TYPE_CHECKING:
    from pyengine.replay.storage import Storage


def damage_error(storage: Storage, fault: BlockFault) -> Exception:
    """Return the error for a mapped block: DamageError, or OSError where it cannot be read."""
    path = storage.paths.get((fault.lane, fault.segment), "an unknown segment file")
    if fault.error_number:
        return OSError(
            fault.error_number,
            f"{os.strerror(fault.error_number)} at byte {fault.offset} (a bad sector, or the file "
            "was cut while it was mapped)",
            path,
        )
    return DamageError(
        f"{path}: the block at byte {fault.offset} does not have the hash that its table records; "
        "its rows were not handed out",
        path=path,
        offset=fault.offset,
        expected=f"{fault.expected:016x}",
        got=f"{fault.got:016x}",
    )


def no_memory_error(label: str, storage: Storage, fault: NoMemory) -> SharedMemoryError:
    """Return the error for a segment slot that shared memory had no room for."""
    needed, free = storage.plan.layout.file_bytes, headroom()
    return SharedMemoryError(
        f"{label}: the next segment needs {needed} bytes of shared memory, {free} are free "
        f"({os.strerror(fault.error_number)}); the row was not added. Enlarge /dev/shm or the "
        "container's limit, or lower the capacity",
        needed_bytes=needed,
        free_bytes=free,
    )
