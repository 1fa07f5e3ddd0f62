"""What the machine says of itself: the disk's own limits, and the memory of a process."""

from __future__ import annotations

import errno
import mmap
import os
import statistics
import time
from dataclasses import dataclass

from pyengine.cli.measure.workload import PROBE_BYTES
from pyengine.fs import door, durable
from pyengine.fs.stream import CHUNK_BYTES

_REPEATS = 3
_SMALL_FILES = 10


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes a second of one large file, written and fsynced, and read, past the page cache where
    the file system allows; seconds until one small file and its name are durable."""

    write_bytes_per_second: float
    read_bytes_per_second: float
    small_file_seconds: float


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes of a process in memory, and how many of them are shared: rows and staging slots, which
    trainer and writer both show."""

    resident_bytes: int
    shared_bytes: int


def measure_disk(directory: str) -> Disk:
    """Write and read files in `directory`; medians of some. Removes them. NoSpaceError, OSError."""
    writes, reads = [], []
    with mmap.mmap(-1, CHUNK_BYTES) as source:
        source[:] = os.urandom(CHUNK_BYTES)
        with memoryview(source) as chunk:
            for number in range(_REPEATS):
                name = f"probe-{number}"
                begin = time.perf_counter()
                durable.write_file(
                    directory,
                    name,
                    [chunk] * (PROBE_BYTES // len(chunk)),
                    direct=True,
                    hashed=False,
                )
                writes.append(time.perf_counter() - begin)
                reads.append(_read_seconds(os.path.join(directory, name), chunk))
                durable.remove_tree(os.path.join(directory, name))
    return Disk(
        PROBE_BYTES / statistics.median(writes),
        PROBE_BYTES / statistics.median(reads),
        statistics.median(_small_file_seconds(directory, n) for n in range(_SMALL_FILES)),
    )


def _small_file_seconds(directory: str, number: int) -> float:
    name = f"small-{number}"
    begin = time.perf_counter()
    durable.write_file(directory, name, [b"\0"], hashed=False)
    durable.fsync_directory(directory)
    seconds = time.perf_counter() - begin
    durable.remove_tree(os.path.join(directory, name))
    return seconds


def _read_seconds(path: str, buffer: memoryview) -> float:
    drop_page_cache(path)
    try:
        fd = door.active.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = door.active.open(path, os.O_RDONLY)
    try:
        begin, place = time.perf_counter(), 0
        while count := door.active.pread_into(fd, [buffer], place):
            place += count
        return time.perf_counter() - begin
    finally:
        door.active.close(fd)


def drop_page_cache(path: str) -> None:
    """Have the kernel forget the cached pages of a durable file, or of all below a directory."""
    if os.path.isdir(path) and not os.path.islink(path):
        for name in os.listdir(path):
            drop_page_cache(os.path.join(path, name))
    elif os.path.isfile(path):
        fd = door.active.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            door.active.close(fd)


def resident(pid: int) -> Resident:
    """Return what a living process has in memory."""
    sizes = {}
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key in ("VmRSS", "RssShmem"):
                sizes[key] = int(value.split()[0]) * 1024
    return Resident(sizes["VmRSS"], sizes["RssShmem"])
