"""How much shared memory may still be taken: /dev/shm, the machine, and every cgroup above us.

A cgroup's page cache is not "used": the kernel drops it before it refuses memory. Shared memory is
accounted as anonymous in the LRU lists, so inactive_file + active_file is what can be reclaimed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

SHM_DIRECTORY = "/dev/shm"
UNLIMITED = 1 << 62
"""What a place without a limit counts as."""


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """One memory cgroup hierarchy: where it is mounted, and where in it this process lives."""

    mount: str
    path: str
    limit: str
    usage: str
    reclaimable: tuple[str, ...]


def headroom(
    *,
    with_shm: bool = True,
    shm: str = SHM_DIRECTORY,
    proc: str = "/proc",
) -> int:
    """Return the bytes of shared memory that can still be taken before something refuses or kills.

    The minimum over free space in `shm` (unless `with_shm` is false: a memfd lives outside it),
    MemAvailable plus free swap, and limit minus unreclaimable use of each ancestor cgroup (v1 and
    v2). Never negative; places that cannot be read count as unlimited.
    """
    free = [_machine_free(proc)]
    if with_shm:
        free.append(_mount_free(shm))
    for hierarchy in _hierarchies(proc):
        free.extend(_cgroup_free(hierarchy))
    return max(0, min(free))


def most_mappings(proc: str = "/proc") -> int:
    """Return how many mappings a process may have; files that are mapped count."""
    found = _number(f"{proc}/sys/vm/max_map_count")
    return UNLIMITED if found is None else found


def _mount_free(directory: str) -> int:
    try:
        room = os.statvfs(directory)
    except OSError:
        return UNLIMITED
    return room.f_bavail * room.f_frsize


def _machine_free(proc: str) -> int:
    values = dict(_pairs(f"{proc}/meminfo", separator=":"))
    if "MemAvailable" not in values:
        return UNLIMITED
    return 1024 * (values["MemAvailable"] + values.get("SwapFree", 0))


def _cgroup_free(hierarchy: _Hierarchy) -> Iterator[int]:
    """Yield the headroom of the process's own cgroup and of each one above it."""
    parts = [part for part in hierarchy.path.split("/") if part]
    for depth in range(len(parts), -1, -1):
        directory = os.path.join(hierarchy.mount, *parts[:depth])
        limit = _number(f"{directory}/{hierarchy.limit}")
        usage = _number(f"{directory}/{hierarchy.usage}")
        if limit is None or usage is None or limit >= UNLIMITED:
            continue
        statistics = dict(_pairs(f"{directory}/memory.stat", separator=" "))
        yield limit - usage + sum(statistics.get(key, 0) for key in hierarchy.reclaimable)


def _hierarchies(proc: str) -> Iterator[_Hierarchy]:
    mounts = dict(_memory_mounts(f"{proc}/self/mountinfo"))
    for line in _lines(f"{proc}/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers and "v2" in mounts:
            yield _Hierarchy(
                *_inside(mounts["v2"], path),
                limit="memory.max",
                usage="memory.current",
                reclaimable=("inactive_file", "active_file", "slab_reclaimable"),
            )
        elif "memory" in controllers.split(",") and "v1" in mounts:
            yield _Hierarchy(
                *_inside(mounts["v1"], path),
                limit="memory.limit_in_bytes",
                usage="memory.usage_in_bytes",
                reclaimable=("total_inactive_file", "total_active_file"),
            )


def _inside(mount: tuple[str, str], path: str) -> tuple[str, str]:
    """Return (mount point, path below it); a container may see only a part of the tree."""
    root, point = mount
    if root != "/" and (path == root or path.startswith(root + "/")):
        return point, path[len(root) :]
    return point, path if root == "/" else "/"


def _memory_mounts(path: str) -> Iterator[tuple[str, tuple[str, str]]]:
    for line in _lines(path):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            yield "v2", (fields[3], fields[4])
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield "v1", (fields[3], fields[4])


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _number(path: str) -> int | None:
    lines = _lines(path)
    if not lines:
        return None
    text = lines[0].strip()
    if text == "max":
        return UNLIMITED
    return int(text) if text.isdigit() else None


def _pairs(path: str, *, separator: str) -> Iterator[tuple[str, int]]:
    for line in _lines(path):
        key, _, value = line.partition(separator)
        number = value.split()[0] if value.split() else ""
        if number.isdigit():
            yield key, int(number)
