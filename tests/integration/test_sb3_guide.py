"""The guide runs as it is written, and the Zoo's way of training goes on after a SIGKILL."""

from __future__ import annotations

import os
import runpy
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyengine

pytest.importorskip("stable_baselines3")

from processes import await_writers_end
from sb3_runs import hashed

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = {
    "ppo": ["--env", "CartPole-v1", "--hyperparams", "n_timesteps:640", "n_envs:2"],
    "sac": [
        "--env", "Pendulum-v1", "--hyperparams", "n_timesteps:600", "learning_starts:100",
        "policy_kwargs:{'net_arch': [16]}", "batch_size:16", "buffer_size:400",
    ],
}  # fmt: skip


def run_block(send: Callable[[Any], None], folder: str) -> None:
    """Run the guide's code in a folder; send what it ended with."""
    os.chdir(folder)
    text = (EXAMPLES / "sb3.md").read_text()
    _, _, block = text.partition("```python\n")
    scope: dict[str, Any] = {}
    exec(compile(block.partition("```")[0], "sb3.md", "exec"), scope)
    send(("end", scope["model"].num_timesteps, hashed(scope["model"].policy.state_dict())))


def test_the_guide_runs_as_it_is_written_and_once_more(start: Any, tmp_path: Path) -> None:
    first = start(run_block, str(tmp_path)).receive("end")
    assert first[1] == 400
    components = pyengine.open_run(tmp_path / "runs" / "goals").snapshots[-1].components
    assert {"replay", "replay_episodes"} <= {one.name for one in components}
    assert start(run_block, str(tmp_path)).receive("end") == first


def train(send: Callable[[Any], None], folder: str, algo: str, killed_at: int | None) -> None:
    """Run the example; SIGKILL at a step; send what the run ended with."""
    from pyengine.integrations import sb3

    class Watched(sb3.SnapshotCallback):
        def _on_step(self) -> bool:
            if killed_at is not None and self.num_timesteps >= killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return super()._on_step()

    sb3.SnapshotCallback = Watched  # the table imports it from there
    example = runpy.run_path(str(EXAMPLES / "sb3_zoo.py"))
    sizes = ["--algo", algo, "--folder", folder, "--eval-freq", "100", "--snapshot-every", "64"]
    model = example["train"](example["parse_arguments"]([*sizes, *SIZES[algo]]))
    results = np.load(f"{folder}/evaluations.npz")
    venv = model.get_env()
    send(("end", {
        "policy": hashed(model.policy.state_dict()),
        "normalizer": hashed([venv.obs_rms, venv.ret_rms]),
        "evaluations": {name: results[name].tolist() for name in results.files},
    }))  # fmt: skip


@pytest.mark.parametrize("algo", SIZES)
def test_a_table_of_hyperparameters_goes_on_after_a_kill(
    start: Any, token: str, tmp_path: Path, algo: str
) -> None:
    whole = start(train, str(tmp_path / "whole"), algo, None)
    expected = whole.receive("end")
    assert whole.join() == 0
    for killed_at in (150, 430):
        assert start(train, str(tmp_path / "killed"), algo, killed_at).join() == -signal.SIGKILL
        await_writers_end(token)
    resumed = start(train, str(tmp_path / "killed"), algo, None)
    assert resumed.receive("end") == expected
    assert len(expected[1]["evaluations"]["timesteps"]) >= 5
