"""What the kernel says about processes: memory, bytes written, children, how they ended; and how a
process of the benchmark is to behave.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGEST_TRIM = 2**31 - 1
LARGEST_THRESHOLD = 2**25


def report_problems_only() -> None:
    """Let the package log warnings and errors alone: its reports of restores are no result."""
    logging.getLogger("pyengine").setLevel(logging.WARNING)


def keep_freed_memory() -> None:
    """Have glibc keep freed blocks of up to 32 MiB for the next ones, instead of the kernel's
    taking back and clearing their pages each time; elsewhere nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, LARGEST_TRIM)
        mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)


@contextmanager
def held_libraries(pid: int | str = "self") -> Iterator[None]:
    """Keep the libraries that a process has mapped in memory while the block runs.

    A page cache that is dropped for the whole machine takes all of them along that nobody has
    touched: the next kernel of torch would be read from the disk, which is not what is measured.
    """
    held: dict[str, mmap.mmap] = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "x" in line.split()[1] and path not in held and os.path.isfile(path):
            with open(path, "rb") as file:
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                held[path] = mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
    try:
        yield
    finally:
        for mapped in held.values():
            mapped.close()


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


def told_exit(status: int) -> str:
    """Return how a process ended, by its exit status as `subprocess` gives it."""
    if status >= 0:
        return f"it ended with exit status {status}"
    hint = ", as the kernel does where memory has run out" if status == -signal.SIGKILL else ""
    return f"it was ended by signal {-status} ({signal.strsignal(-status)}{hint})"
