"""The main promise: a killed run goes on bit for bit, and snapshots change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import committed, leftovers
from program import Plan, Training, run

import pyengine


def reference(steps: int) -> dict[int, dict[str, str]]:
    """Return the digests after each step of a run without an engine."""
    training = Training()
    digests = {}
    for step in range(steps):
        training.step(step)
        digests[step] = training.digest()
    return digests


def test_training_with_snapshots_is_bit_identical_to_training_without(
    start: Any, tmp_path: Path
) -> None:
    plan = Plan(60, snapshots=tuple(range(3, 60, 7)), wait_for=(17,))
    with_snapshots = start(run, str(tmp_path / "run"), plan)
    digest = with_snapshots.receive("end")[1]
    assert with_snapshots.join() == 0
    assert digest == reference(60)[59]


@pytest.mark.parametrize("kill_at", [5, 20, 47])
def test_a_killed_run_goes_on_bit_for_bit(start: Any, tmp_path: Path, kill_at: int) -> None:
    run_dir = str(tmp_path / "run")
    options: dict[str, Any] = {"every_steps": 5, "budget": None}
    killed = start(run, run_dir, Plan(60, kill_self_at=kill_at, options=options))
    assert killed.join() == -9
    resumed = start(run, run_dir, Plan(60, options=options))
    _, step, digest = resumed.receive("restored")
    expected = reference(60)
    assert step is not None
    assert digest == expected[step]
    assert resumed.receive("end")[1] == expected[59]
    assert resumed.join() == 0
    assert leftovers(run_dir) == []


def test_many_kills_still_reach_the_same_end(start: Any, tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    options: dict[str, Any] = {"every_steps": 4, "budget": None, "keep_last": 2}
    for kill_at in (9, 21, 22, 38, 51):
        child = start(run, run_dir, Plan(60, kill_self_at=kill_at, options=options))
        assert child.join() == -9
    last = start(run, run_dir, Plan(60, options=options))
    assert last.receive("end")[1] == reference(60)[59]
    assert last.join() == 0
    assert len(committed(run_dir)) <= 3
    assert leftovers(run_dir) == []


def test_a_copy_of_a_snapshot_opens_and_loads_by_itself(tmp_path: Path) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.restore()
        for step in range(12):
            training.step(step)
        info = engine.snapshot(11, metrics={"return": 3.5}).wait(60)
    assert info.global_step == 11
    assert info.metrics == {"return": 3.5}
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", info.path, copy], check=True)
    weights = pyengine.load(str(copy), only=["policy"])["policy"]
    for name, value in training.net.state_dict().items():
        assert value.equal(weights[name])


def test_the_writer_loads_neither_torch_nor_numpy(token: str, tmp_path: Path) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.restore()
        for step in range(12):
            training.step(step)
        engine.snapshot(11).wait(60)
        maps = Path(f"/proc/{engine.writer_pid}/maps").read_text()
    assert "_native" in maps
    assert "torch" not in maps
    assert "numpy" not in maps


SCRIPT = """
import sys
import torch, pyengine
net = torch.nn.Linear(2, 2)
engine = pyengine.SnapshotEngine(sys.argv[1])
engine.track(policy=net)
print(engine.restore().next_step)
engine.snapshot(3).wait(60)
"""


def test_a_script_without_a_main_guard_works_from_any_directory(tmp_path: Path) -> None:
    # Modules of the working directory must not get into the writer.
    (tmp_path / "msgpack.py").write_text("raise SystemExit('the wrong msgpack')")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(SCRIPT)
    root = Path(pyengine.__file__).parent.parent
    for expected in ("0", "4"):
        done = subprocess.run(
            [sys.executable, tmp_path / "scripts" / "train.py", "run"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == expected
