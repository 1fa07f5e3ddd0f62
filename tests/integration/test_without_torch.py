"""torch is loaded only where the user brings it or a snapshot holds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_NUMPY_RUN = """
import sys
import numpy as np
import pyengine

ring = pyengine.ReplayBuffer({"obs": pyengine.Field((4,), "float32")}, capacity=64)
counters = {"step": 0, "rng": np.random.default_rng(3), "mean": np.zeros(4)}
with pyengine.SnapshotEngine(sys.argv[1]) as engine:
    engine.track(replay=ring, counters=counters)
    start = engine.restore().next_step
    for step in range(start, start + 5):
        ring.add(obs=np.full((1, 4), step, np.float32))
        counters["step"] = step
        ring.sample(2)
    engine.snapshot(step).wait(60)
print(start, len(ring), counters["step"], "torch" in sys.modules)
"""

_LATE_TORCH = """
import sys
import numpy as np
import pyengine

weights = [np.zeros(4)]
with pyengine.SnapshotEngine(sys.argv[1]) as engine:
    engine.track(weights=weights)
    engine.restore()
    engine.snapshot(0).wait(60)
    import torch
    torch.manual_seed(5)
    weights[:] = [torch.arange(4.0)]
    engine.snapshot(1).wait(60)
    drawn = torch.rand(3)
with pyengine.SnapshotEngine(sys.argv[1]) as engine:
    engine.track(weights=weights)
    weights[0].zero_()
    engine.restore()
    assert weights[0].tolist() == [0, 1, 2, 3]
    assert torch.equal(torch.rand(3), drawn)
"""

_RESTORE_WITH_TORCH = """
import sys
import torch
import pyengine

counters = {"step": 0, "rng": None, "mean": None}
with pyengine.SnapshotEngine(sys.argv[1]) as engine:
    engine.track(counters=counters)
    report = engine.restore(replay="skip", allow=["replay"])
print(report)
"""


def run(script: str, run_dir: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, str(run_dir)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_of_arrays_is_saved_and_resumed_without_loading_torch(tmp_path: Path) -> None:
    assert run(_NUMPY_RUN, tmp_path / "run").split() == ["0", "5", "4", "False"]
    assert run(_NUMPY_RUN, tmp_path / "run").split() == ["5", "10", "9", "False"]


def test_torch_may_be_loaded_between_two_snapshots(tmp_path: Path) -> None:
    run(_LATE_TORCH, tmp_path / "run")


def test_the_report_says_that_a_run_without_torch_has_no_generator_for_it(tmp_path: Path) -> None:
    run(_NUMPY_RUN, tmp_path / "run")
    assert "torch was not loaded when this was saved" in run(_RESTORE_WITH_TORCH, tmp_path / "run")
