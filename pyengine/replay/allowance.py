"""How much shared memory the slots of a ring may take before what is left is looked at again.

/dev/shm refuses what it does not have. Where the machine's memory or a memory cgroup ends first,
nobody is refused: the kernel kills. So slots take what was allowed, then ask, and whoever asks gets
an error that can be handled.
"""

from __future__ import annotations

from pyengine._native.ring import RingCore
from pyengine.config import MEMORY_MARGIN_BYTES, PART_MAX_BYTES
from pyengine.errors import SharedMemoryError
from pyengine.shm.headroom import headroom

_ALLOWED_BYTES = 256 * 1024 * 1024
"""At most so much at once, and an eighth of what is left: others take memory meanwhile."""


def allow_memory(core: RingCore, slot_bytes: int, label: str, *, lanes: int) -> None:
    """Let slots of `slot_bytes` take more where there is more; SharedMemoryError where not.

    Left alone is what the writer needs to copy the open rows of all lanes, and a margin. Reads some
    small files of /proc and the cgroups: under a millisecond.
    """
    free_bytes = headroom(with_shm=False)
    left_bytes = MEMORY_MARGIN_BYTES + min(lanes * slot_bytes, PART_MAX_BYTES)
    spare_bytes = free_bytes - left_bytes
    if spare_bytes < slot_bytes:
        raise SharedMemoryError(
            f"{label}: the next segment needs {slot_bytes} bytes of shared memory, {free_bytes} "
            f"are free in this machine or container, of which {left_bytes} stay for "
            "everything else; the row was not added. Raise the memory limit, or lower the capacity",
            needed_bytes=slot_bytes,
            free_bytes=free_bytes,
        )
    core.allow_bytes(max(slot_bytes, min(spare_bytes // 8, _ALLOWED_BYTES)))
