"""Mappings of files: what is asked for is there before it is touched."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from pyengine._native.mapping import Mapping

PAGE = 4096
SIZE = 24 * 1024 * 1024


def faults_of_populating(path: Path, size: int, *, ask: bool) -> int:
    """Return how many pages were read one by one, of a file that is in no cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with Mapping.file(fd, SIZE) as mapping:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
            if ask:
                mapping.advise_willneed(0, size)
            mapping.populate(0, size)
            return resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
    finally:
        os.close(fd)


def test_pages_that_were_asked_for_are_not_read_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(os.urandom(SIZE))
        os.fsync(file.fileno())
    few = 64 * PAGE
    if faults_of_populating(path, few, ask=False) < few // PAGE // 2:
        pytest.skip("the file system keeps the file in memory")
    assert faults_of_populating(path, SIZE, ask=True) < SIZE // PAGE // 10
