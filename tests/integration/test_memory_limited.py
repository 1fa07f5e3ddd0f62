"""A replay larger than the memory it may use: resume, train on and save while mapped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash
from memory_limited_child import OVERWRITTEN, ROW_BYTES, ROWS, SAMPLE

LIMIT_BYTES = 400 * 1024 * 1024
PRIVATE_BYTES = 100_000_000
CHILD = Path(__file__).with_name("memory_limited_child.py")

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def limited_cgroup() -> Iterator[Path]:
    """A memory cgroup with a limit well below the replay; skips where none can be made."""
    parent, limit_name = _memory_hierarchy()
    group = parent / f"pyengine-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made below {parent}: {error}")
    try:
        try:
            (group / limit_name).write_text(str(LIMIT_BYTES))
        except OSError as error:
            pytest.skip(f"{group} takes no memory limit: {error}")
        yield group
    finally:
        _remove_when_empty(group)


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


def run_life(life: str, run: Path, cgroup: Path | None = None) -> dict[str, Any]:
    command = [sys.executable, str(CHILD), life, str(run), *([str(cgroup)] if cgroup else [])]
    child = subprocess.run(command, capture_output=True, text=True)
    killed = f"; {oom_kills(cgroup)}" if cgroup else ""
    assert child.returncode == 0, f"{life} ended with {child.returncode}{killed}:\n{child.stderr}"
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return result


def oom_kills(cgroup: Path) -> str:
    """Return what the kernel counts of processes that it ended for memory."""
    files = [cgroup / name for name in ("memory.oom_control", "memory.events")]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    return ", ".join(line for line in lines if "oom_kill " in line)


def content_hashes(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path): xxhash.xxh3_64_hexdigest(path.read_bytes()) for path in files}


def disk_bytes(directory: Path) -> int:
    """Bytes on disk below `directory`, each file once however many names it has."""
    stats = (path.stat() for path in directory.rglob("*") if path.is_file())
    return sum({(stat.st_dev, stat.st_ino): 512 * stat.st_blocks for stat in stats}.values())


def test_a_replay_larger_than_memory_resumes_trains_and_saves(
    tmp_path: Path, limited_cgroup: Path
) -> None:
    run = tmp_path / "run"
    first = run / "snapshots" / run_life("build", run)["snapshot"]
    before = content_hashes(first)

    carried = run_life("carry_on", run, limited_cgroup)
    assert carried["restored"]
    assert carried["rows"] == ROWS
    assert carried["sample_correct"]
    assert carried["private_bytes_of_restore"] < PRIVATE_BYTES + SAMPLE * ROW_BYTES

    assert content_hashes(first) == before, "saving while mapped changed the first snapshot"
    new_bytes = (ROWS + OVERWRITTEN) * ROW_BYTES
    assert disk_bytes(run) < 1.1 * new_bytes, "rows were written twice"

    expected = {"next_step": 3, "correct": True, "total_count": ROWS + OVERWRITTEN}
    assert run_life("check", run, limited_cgroup) == expected
    shutil.rmtree(first)
    assert run_life("check", run, limited_cgroup) == expected
    assert (run / "snapshots" / carried["snapshot"]).is_dir()
