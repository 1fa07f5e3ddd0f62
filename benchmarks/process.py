"""What the kernel says about processes: memory, bytes written, children."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def private_bytes(pid: int | str = "self") -> int:
    """Return a process's private memory (clean and dirty), from smaps_rollup."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            total += int(line.split()[1]) * 1024
    return total


def shared_memory_bytes() -> int:
    """Return the shared memory that this process has in its page tables."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssShmem:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no line RssShmem")


def proportional_bytes(*pids: int | str) -> int:
    """Return the memory of these processes, what they share counted once (PSS).

    A process that has ended has none.
    """
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def children() -> list[int]:
    """Return the process ids of this process's living children: the writer."""
    lists = Path("/proc/self/task").glob("*/children")
    return [int(pid) for path in lists for pid in path.read_text().split()]


def written_bytes(pid: int | str = "self") -> int:
    """Return the bytes that a process has handed to write() since it began."""
    fields = Path(f"/proc/{pid}/io").read_text().split()
    return int(fields[fields.index("wchar:") + 1])
