"""The examples for Stable-Baselines3 go on after a SIGKILL, by the same command."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyengine

pytest.importorskip("stable_baselines3")

EXAMPLES = Path(__file__).parents[2] / "examples"
ENVS, SNAPSHOT_EVERY, KILLED_AT, STEPS = 2, 60, 150, 200


def start_example(
    send: Callable[[Any], None], name: str, arguments: list[str], killed_at: int | None
) -> None:
    """Run an example as `python` does; SIGKILL in the step that reaches `killed_at`."""
    from pyengine.integrations import sb3

    class Watched(sb3.SnapshotCallback):
        def _on_step(self) -> bool:
            send(("step", self.num_timesteps))
            if killed_at is not None and self.num_timesteps >= killed_at:
                assert self._last is not None
                self._last.wait(60)
                send(("saved", self._last.step))
                os.kill(os.getpid(), signal.SIGKILL)
            return super()._on_step()

    sb3.SnapshotCallback = Watched  # the examples import it from there
    sys.argv = [name, *arguments]
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.mark.parametrize(
    "name",
    [pytest.param("sb3_dqn_atari.py", marks=pytest.mark.atari), "sb3_sac.py"],
)
def test_an_example_goes_on_after_a_kill(start: Any, tmp_path: Path, name: str) -> None:
    if "atari" in name:
        pytest.importorskip("ale_py")
        pytest.importorskip("cv2")
    run_dir = str(tmp_path / "run")
    sizes = {
        "steps": STEPS, "snapshot-every": SNAPSHOT_EVERY, "learning-starts": 40, "capacity": 120,
        "envs": ENVS, "threads": 1,
    }  # fmt: skip
    options = [text for key, value in sizes.items() for text in (f"--{key}", str(value))]
    command = [name, ["--run-dir", run_dir, *options]]

    first = start(start_example, *command, KILLED_AT)
    kind, saved = first.messages()[-1]
    assert kind == "saved"
    assert first.join() == -signal.SIGKILL

    second = start(start_example, *command, None)
    steps = [step for _, step in second.messages()]
    assert second.join() == 0
    assert steps[0] == saved + ENVS, "the step after the newest snapshot's"
    assert steps[-1] == STEPS
    assert pyengine.load(run_dir, only=["model"])["model"]["num_timesteps"] == STEPS
