"""Rings whose rows lie in mapped segment files, and ways to spoil those files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from saved_rings import SavedRing, save

from pyengine import Field, ReplayBuffer
from pyengine.format.segment import iter_blocks

FIELDS = {
    "id": "int64",
    "obs": ((512,), "uint8"),
    "mark": Field((), "int32", mutable=True, default=0),
}


def new_ring(capacity: int = 4096, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(FIELDS, capacity, seed=5, **options)


def rows(ids: Any) -> dict[str, Any]:
    """Rows whose every byte tells their id."""
    ids = np.asarray(ids, np.int64)
    obs = np.repeat((ids % 251).astype(np.uint8)[..., None], 512, axis=-1)
    return {"id": ids, "obs": obs}


@contextmanager
def mapped_ring(directory: Path, count: int = 4096, **options: Any) -> Iterator[ReplayBuffer]:
    """A ring of one lane and `count` rows whose full segments are files in `directory`."""
    capacity = options.pop("capacity", 4096)
    with saved(directory, count, capacity) as files, new_ring(capacity) as ring:
        files.install(ring, **options)
        yield ring


@contextmanager
def saved(directory: Path, count: int, capacity: int = 4096) -> Iterator[SavedRing]:
    with new_ring(capacity) as source:
        source.extend(**rows(np.arange(count)))
        yield save(source, directory)


def path_of(ring: ReplayBuffer, segment: int, lane: int = 0) -> Path:
    assert ring.storage is not None
    return Path(ring.storage.paths[lane, segment])


def block_place(ring: ReplayBuffer, field: str, index: int = 0) -> tuple[int, int]:
    """Byte offset and length of a field's block in a full segment's file."""
    assert ring.storage is not None
    layout = ring.storage.plan.layout
    block = next(f.first_block for f in layout.fields if f.name == field) + index
    return next((start, size) for number, start, size in iter_blocks(layout) if number == block)


def forget_pages(path: Path) -> None:
    """Drop a file from the page cache, as far as nobody has its pages mapped."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
