"""A memory cgroup for tests, of version 1 or 2; skips where none can be made."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Give a memory cgroup of this limit; a process joins it through its `cgroup.procs`."""
    parent, limit_name = _memory_hierarchy()
    group = parent / f"pyengine-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made below {parent}: {error}")
    try:
        try:
            (group / limit_name).write_text(str(limit_bytes))
        except OSError as error:
            pytest.skip(f"{group} takes no memory limit: {error}")
        yield group
    finally:
        _remove_when_empty(group)


def oom_kills(cgroup: Path) -> str:
    """Return what the kernel counts of processes that it ended for memory."""
    files = [cgroup / name for name in ("memory.oom_control", "memory.events")]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    return ", ".join(line for line in lines if "oom_kill " in line)


def _memory_hierarchy() -> tuple[Path, str]:
    """Return the root of the memory cgroups and the name of their limit, version 1 or 2."""
    root = Path("/sys/fs/cgroup")
    if (root / "memory" / "memory.limit_in_bytes").exists():
        return root / "memory", "memory.limit_in_bytes"
    controllers = root / "cgroup.subtree_control"
    if controllers.exists() and "memory" in controllers.read_text().split():
        return root, "memory.max"
    pytest.skip("no memory cgroups are mounted at /sys/fs/cgroup")


def _remove_when_empty(group: Path) -> None:
    """Remove the group once the kernel has taken the last ended process out of it."""
    deadline = time.monotonic() + 10
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    group.rmdir()
