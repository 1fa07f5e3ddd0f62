"""The guide to plain loops runs as it is written, and a signal ends a script in a snapshot."""

from __future__ import annotations

import argparse
import io
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

import gymnasium

import pyengine
from pyengine.integrations.gymnasium import EnvState

REPOSITORY = Path(__file__).parents[2]
GUIDE = (REPOSITORY / "examples" / "plain_loops.md").read_text("utf-8")
COMMANDS = re.findall(r"^    python (examples/.*)$", GUIDE, re.MULTILINE)


def run_script(send: Callable[[Any], None], folder: str, words: list[str]) -> None:
    """Run a script as `python` does, in a folder; send what it logs."""
    os.chdir(folder)
    log = logging.StreamHandler(io.StringIO())
    logging.getLogger("pyengine").addHandler(log)
    sys.argv = words
    runpy.run_path(str(REPOSITORY / words[0]), run_name="__main__")
    send(("log", log.stream.getvalue()))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_a_command_runs_as_shown(start: Any, tmp_path: Path, command: str) -> None:
    words = command.split()
    start(run_script, str(tmp_path), words).receive("log")
    (newest,) = pyengine.open_run(tmp_path / words[words.index("--run") + 1]).snapshots
    assert newest.global_step + 1 >= int(words[words.index("--total-steps") + 1])


def test_there_is_a_command_for_each_script() -> None:
    assert [words.split()[0] for words in COMMANDS] == [
        f"examples/{name}.py" for name in ("sac", "td3", "ppo")
    ]


def test_sigterm_ends_a_script_in_a_snapshot_from_which_it_goes_on(
    start: Any, tmp_path: Path
) -> None:
    words = ["examples/td3.py", "--run", str(tmp_path / "run"), "--total-steps"]
    script = subprocess.Popen(
        [sys.executable, *words, "100000"], cwd=REPOSITORY, text=True, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert script.stdout is not None
    try:
        assert "episode 1" in script.stdout.readline()
        script.send_signal(signal.SIGTERM)
        script.communicate(timeout=60)
    finally:
        script.kill()
    assert script.returncode == 128 + signal.SIGTERM
    step = pyengine.open_run(tmp_path / "run").snapshots[-1].global_step
    assert step >= 199
    again = start(run_script, str(tmp_path), [*words, str(step + 2)])
    assert f"go on with step {step + 1}" in again.receive("log")[1]


def test_the_lines_for_a_loop_run_as_shown(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    for total in (3, 5):
        envs = gymnasium.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync")
        obs, _ = envs.reset(seed=1)
        actor = torch.nn.Linear(3, 1)
        scope: dict[str, Any] = {
            "pyengine": pyengine,
            "EnvState": EnvState,
            "args": argparse.Namespace(run=tmp_path, snapshot_every=1, total_steps=total),
            "actor": actor,
            "optimizer": torch.optim.Adam(actor.parameters()),
            "ring": pyengine.ReplayBuffer(pyengine.Schema.from_env(envs), 100, num_envs=2),
            "counters": {"updates": 0},
            "envs": envs,
            "obs": obs,
            "done": np.zeros(2, bool),
        }
        exec(block, scope)
        assert bool(scope["report"]) == (total == 5)
        assert pyengine.open_run(tmp_path).snapshots[-1].global_step <= total - 1
        envs.close()
