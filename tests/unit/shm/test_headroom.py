"""Headroom is the smallest of all limits above the process, page cache not counted as used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyengine.shm.headroom import UNLIMITED, headroom

GIB = 1 << 30


class Machine:
    """A made-up /proc and cgroup tree."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.tree = root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.write("proc/meminfo", f"MemAvailable: {100 * GIB // 1024} kB\nSwapFree: 0 kB\n")
        self.write("proc/self/mountinfo", "")
        self.write("proc/self/cgroup", "")

    def write(self, path: str, text: str) -> None:
        target = self.proc.parent / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def mount(self, kind: str, options: str, *, root: str = "/") -> None:
        self.write(
            "proc/self/mountinfo", f"30 1 0:26 {root} {self.tree} rw - {kind} none {options}\n"
        )

    def free(self) -> int:
        return headroom(with_shm=False, proc=str(self.proc))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_cgroups_the_machine_is_the_limit(machine: Machine) -> None:
    assert machine.free() == 100 * GIB


def test_free_swap_counts(machine: Machine) -> None:
    machine.write("proc/meminfo", "MemAvailable: 4 kB\nSwapFree: 6 kB\n")
    assert machine.free() == 10 * 1024


def test_a_limit_of_an_ancestor_counts(machine: Machine) -> None:
    machine.mount("cgroup2", "rw")
    machine.write("proc/self/cgroup", "0::/user/job\n")
    machine.write("cgroup/user/job/memory.max", "max\n")
    machine.write("cgroup/user/job/memory.current", "5\n")
    machine.write("cgroup/user/memory.max", f"{8 * GIB}\n")
    machine.write("cgroup/user/memory.current", f"{3 * GIB}\n")
    assert machine.free() == 5 * GIB


def test_page_cache_is_not_used_memory(machine: Machine) -> None:
    machine.mount("cgroup2", "rw")
    machine.write("proc/self/cgroup", "0::/job\n")
    machine.write("cgroup/job/memory.max", f"{8 * GIB}\n")
    machine.write("cgroup/job/memory.current", f"{7 * GIB}\n")
    stat = f"anon {GIB}\ninactive_file {4 * GIB}\nactive_file {GIB}\nslab_reclaimable {GIB}\n"
    machine.write("cgroup/job/memory.stat", stat)
    assert machine.free() == 7 * GIB


def test_version_1_hierarchies_count(machine: Machine) -> None:
    machine.mount("cgroup", "rw,memory")
    machine.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n")
    machine.write("cgroup/docker/abc/memory.limit_in_bytes", f"{2 * GIB}\n")
    machine.write("cgroup/docker/abc/memory.usage_in_bytes", f"{GIB}\n")
    machine.write("cgroup/docker/abc/memory.stat", "total_inactive_file 4096\n")
    assert machine.free() == GIB + 4096


def test_a_container_sees_its_own_part_of_the_tree(machine: Machine) -> None:
    machine.mount("cgroup2", "rw", root="/docker/abc")
    machine.write("proc/self/cgroup", "0::/docker/abc/inner\n")
    machine.write("cgroup/inner/memory.max", f"{GIB}\n")
    machine.write("cgroup/inner/memory.current", "0\n")
    assert machine.free() == GIB


def test_a_cgroup_over_its_limit_leaves_nothing(machine: Machine) -> None:
    machine.mount("cgroup2", "rw")
    machine.write("proc/self/cgroup", "0::/\n")
    machine.write("cgroup/memory.max", "10\n")
    machine.write("cgroup/memory.current", "20\n")
    assert machine.free() == 0


def test_dev_shm_counts_unless_it_is_left_out(machine: Machine, tmp_path: Path) -> None:
    room = os.statvfs(tmp_path)
    with_shm = headroom(proc=str(machine.proc), shm=str(tmp_path))
    assert with_shm <= min(100 * GIB, (room.f_bavail + 4096) * room.f_frsize)
    assert headroom(proc=str(tmp_path / "none"), shm=str(tmp_path / "none")) == UNLIMITED


def test_this_machine_has_some_headroom() -> None:
    assert 0 < headroom() < UNLIMITED
