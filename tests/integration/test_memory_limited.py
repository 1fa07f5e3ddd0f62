"""A replay larger than the memory it may use: made there, or resumed; trained on and saved."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash
from cgroups import memory_cgroup, oom_kills
from memory_limited_child import OVERWRITTEN, ROW_BYTES, ROWS, SAMPLE

LIMIT_BYTES = 400 * 1024 * 1024
QUARTER_BYTES = ROWS * ROW_BYTES // 4
PRIVATE_BYTES = 100_000_000
CHILD = Path(__file__).with_name("memory_limited_child.py")

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def limited_cgroup() -> Iterator[Path]:
    """A memory cgroup with a limit well below the replay; skips where none can be made."""
    with memory_cgroup(LIMIT_BYTES) as group:
        yield group


def run_life(
    life: str, run: Path, cgroup: Path | None = None, *, ring_bytes: int = 0
) -> dict[str, Any]:
    command = [sys.executable, str(CHILD), life, str(run), str(ring_bytes)]
    command += [str(cgroup)] if cgroup else []
    child = subprocess.run(command, capture_output=True, text=True)
    killed = f"; {oom_kills(cgroup)}" if cgroup else ""
    assert child.returncode == 0, f"{life} ended with {child.returncode}{killed}:\n{child.stderr}"
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return result


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


@pytest.mark.parametrize("ring_bytes", [0, QUARTER_BYTES // 4])
def test_a_replay_of_four_times_the_memory_is_made_saved_and_resumed_there(
    tmp_path: Path, ring_bytes: int
) -> None:
    """With a limit of its own, and where nothing but the container ends it."""
    run = tmp_path / "run"
    with memory_cgroup(QUARTER_BYTES) as group:
        run_life("build", run, group, ring_bytes=ring_bytes)
        carried = run_life("carry_on", run, group, ring_bytes=ring_bytes)
        assert carried["rows"] == ROWS
        assert carried["sample_correct"]
        assert disk_bytes(run) < 1.1 * (ROWS + OVERWRITTEN) * ROW_BYTES, "rows were written twice"
        expected = {"next_step": 3, "correct": True, "total_count": ROWS + OVERWRITTEN}
        assert run_life("check", run, group, ring_bytes=ring_bytes) == expected
    shutil.rmtree(run)
