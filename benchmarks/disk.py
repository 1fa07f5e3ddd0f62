"""The disk's own limits, measured with nothing of pyengine in between.

Everything here uses O_DIRECT, so that the page cache neither helps nor hides.
"""

from __future__ import annotations

import mmap
import os
import random
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

READ_BYTES = 64 * 1024
DEPTH = 32
"""Reads at once that bring out what a disk gives."""

WRITE_BYTES = 8 * 1024 * 1024


def drop_page_cache(directory: Path) -> str:
    """Drop cached pages of all files below `directory`, and of the whole machine where root.

    Returns what was done. Files must be durable: dirty pages are not dropped.
    """
    for path in regular_files(directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return "posix_fadvise"
    return "posix_fadvise and drop_caches"


def regular_files(directory: Path) -> list[Path]:
    """Return every regular file below `directory`, symbolic links left out."""
    return [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]


def random_read_rate(files: Iterable[Path], *, reads: int, seed: int, depth: int = 1) -> float:
    """Return bytes per second of random, aligned 64 KiB reads, `depth` of them at a time."""
    chosen = [(path, path.stat().st_size // READ_BYTES) for path in files]
    chosen = [(path, blocks) for path, blocks in chosen if blocks > 0]
    rng = random.Random(seed)
    places = rng.choices(chosen, weights=[blocks for _, blocks in chosen], k=reads)
    descriptors = {path: os.open(path, os.O_RDONLY | os.O_DIRECT) for path, _ in set(places)}
    wanted = [(descriptors[path], rng.randrange(blocks) * READ_BYTES) for path, blocks in places]
    try:
        with ExitStack() as stack:
            buffers = [stack.enter_context(mmap.mmap(-1, READ_BYTES)) for _ in range(depth)]
            threads = stack.enter_context(ThreadPoolExecutor(depth))
            list(threads.map(_touch, buffers))
            begin = time.perf_counter()
            parts = [threads.submit(_read, wanted[i::depth], buffers[i]) for i in range(depth)]
            for part in parts:
                part.result()
            seconds = time.perf_counter() - begin
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
    return reads * READ_BYTES / seconds


def _touch(buffer: mmap.mmap) -> None:
    buffer.write(bytes(READ_BYTES))


def _read(places: list[tuple[int, int]], buffer: mmap.mmap) -> None:
    for descriptor, offset in places:
        os.preadv(descriptor, [buffer], offset)


def sequential_read_seconds(files: Iterable[Path]) -> float:
    """Return seconds to read the whole blocks of `files` once, in order, 8 MiB at a time."""
    with mmap.mmap(-1, WRITE_BYTES) as buffer:
        begin = time.perf_counter()
        for path in files:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                place = 0
                while (size := os.preadv(descriptor, [buffer], place)) == WRITE_BYTES:
                    place += size
            finally:
                os.close(descriptor)
        return time.perf_counter() - begin


def make_durable(directory: Path) -> None:
    """Fsync every file and directory below `directory`, and the directory that holds it."""
    paths = [path for path in directory.rglob("*") if not path.is_symlink()]
    for path in (*paths, directory, directory.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def plain_write_seconds(path: Path, total_bytes: int, source: mmap.mmap) -> float:
    """Return seconds to write `total_bytes` from a warm buffer with O_DIRECT and fsync them.

    O_DIRECT takes whole pages: the last one is filled up.
    The file is new each time and removed afterwards; the directory is fsynced too.
    """
    view = memoryview(source)
    begin = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    try:
        written, total_bytes = 0, -(-total_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        while written < total_bytes:
            place = written % len(source)
            size = min(WRITE_BYTES, total_bytes - written, len(source) - place)
            written += os.write(descriptor, view[place : place + size])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        view.release()
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(parent)
    os.close(parent)
    seconds = time.perf_counter() - begin
    path.unlink()
    return seconds
