"""No space: on the run's disk, in /dev/shm, in the memory cgroup. An error in numbers, never SIGBUS
and never the OOM killer; the previous snapshot can be restored, and training goes on."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cgroups import memory_cgroup, oom_kills
from processes import committed, leftovers

import pyengine
from pyengine import errors

MIB = 1 << 20
CHILD = Path(__file__).with_name("no_space_child.py")

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 20 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting needs root")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def run_child(command: list[str], cgroup: Path | None = None) -> dict[str, Any]:
    arguments = [*command, *([str(cgroup)] if cgroup else [])]
    child = subprocess.run(arguments, capture_output=True, text=True)
    killed = oom_kills(cgroup) if cgroup else ""
    assert child.returncode == 0, f"ended with {child.returncode}; {killed}\n{child.stderr}"
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return result


def life(what: str, run: Path) -> list[str]:
    return [sys.executable, str(CHILD), what, str(run)]


def with_small_shm(command: list[str]) -> list[str]:
    """Return the command in a mount namespace whose /dev/shm has 64 MiB."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is missing")
    script = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    namespace = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    if subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
        pytest.skip("mount namespaces need root")
    return [*namespace, *command]


def test_a_full_disk_is_told_in_numbers_and_the_last_snapshot_stays(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = small_disk / "run"
    state = np.random.default_rng(1).standard_normal(MIB)  # 8 MiB: two fit, three do not
    step = 0
    failed = None
    with (
        caplog.at_level(logging.WARNING, logger="pyengine"),
        pyengine.SnapshotEngine(run, keep_last=5, on_error="warn") as engine,
    ):
        engine.track(state=state, counters={"step": 0})
        engine.restore()
        for step in range(1, 6):
            state += 1
            assert engine.tick(step) is None  # the loop goes on whatever became of the last one
            try:
                engine.snapshot(step).wait(60)
            except errors.NoSpaceError as error:
                failed = failed or error
        kept = committed(run)
    assert failed is not None
    assert failed.needed_bytes >= state.nbytes
    assert 0 < failed.free_bytes < failed.needed_bytes
    assert len(kept) == 2
    assert leftovers(run) == []

    back = np.zeros(MIB)
    with pyengine.SnapshotEngine(run, keep_last=1) as engine:
        engine.track(state=back, counters={"step": 0})
        assert engine.restore().global_step == 2
        assert (back == np.random.default_rng(1).standard_normal(MIB) + 1 + 1).all()


def test_a_disk_that_has_room_again_takes_snapshots_again(small_disk: Path) -> None:
    run, ballast = small_disk / "run", small_disk / "ballast"
    state = np.random.default_rng(1).standard_normal(MIB)
    with pyengine.SnapshotEngine(run, keep_last=1) as engine:
        engine.track(state=state)
        engine.restore()
        engine.snapshot(1).wait(60)
        ballast.write_bytes(bytes(8 * MIB))
        with pytest.raises(errors.NoSpaceError):
            engine.snapshot(2).wait(60)
        ballast.unlink()
        assert engine.snapshot(3).wait(60).global_step == 3


def test_state_larger_than_dev_shm_is_saved_and_comes_back(tmp_path: Path) -> None:
    result = run_child(with_small_shm(life("large_state", tmp_path / "run")))
    assert result == {"snapshot": "step-00000001.g0001.s0001", "correct": True}


def test_where_the_memory_of_a_container_ends_a_ring_without_files_refuses_rows_and_lives(
    tmp_path: Path,
) -> None:
    limit = 256 * MIB
    with memory_cgroup(limit) as cgroup:
        result = run_child(life("memory_ends", tmp_path / "run"), cgroup)
        assert result["type"] == "SharedMemoryError"
        assert result["needed"] >= MIB
        assert result["free"] < limit // 4, "much of the memory was left"
        assert result["rows"] > 32
        assert result["correct"]
        assert "oom_kill 0" in oom_kills(cgroup)


def test_where_dev_shm_ends_under_a_ring_its_oldest_rows_go_to_their_files(tmp_path: Path) -> None:
    result = run_child(with_small_shm(life("shm_ends", tmp_path / "run")))
    assert result == {"refused": 0, "rows": 48, "correct": True}


def test_where_dev_shm_ends_under_a_ring_without_files_rows_are_refused(tmp_path: Path) -> None:
    result = run_child(with_small_shm(life("shm_ends_alone", tmp_path / "run")))
    assert result["type"] == "SharedMemoryError"
    assert result["free"] < result["needed"]
    assert result["correct"]


def test_a_snapshot_that_cannot_be_staged_is_an_error_and_the_loop_goes_on(tmp_path: Path) -> None:
    with memory_cgroup(160 * MIB) as cgroup:
        result = run_child(life("too_large_state", tmp_path / "run"), cgroup)
        assert "oom_kill 0" in oom_kills(cgroup)
    assert result["type"] == "SharedMemoryError"
    assert result["needed"] >= 200 * MIB
    assert result["free"] < 160 * MIB
    assert result["step"] == 1


def test_sparse_fields_beyond_4_gib_take_what_they_hold_or_are_refused(tmp_path: Path) -> None:
    with memory_cgroup(400 * MIB) as cgroup:
        result = run_child(life("sparse_fields", tmp_path / "run"), cgroup)
        assert "oom_kill 0" in oom_kills(cgroup)
    assert result["whole"] > 4 << 30
    assert result["taken"] < 400 * MIB
    assert result["type"] == "SharedMemoryError"
    assert result["needed"] > 4 << 30
    assert result["free"] < 400 * MIB
    assert committed(tmp_path / "run") == [result["snapshot"]]
