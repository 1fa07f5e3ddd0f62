"""Stacks of environments go on bit for bit, in another process, from a snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")
pytest.importorskip("mujoco")
pytest.importorskip("ale_py")
pytest.importorskip("cv2")

from sb3_stacks import go_on, save

STACKS = {
    "breakout": (150, 400),
    "preprocessed": (150, 400),
    "cartpole": (60, 200),
    "pendulum": (150, 250),
    "mountain_car": (900, 250),
    "halfcheetah": (900, 250),
    "humanoid": (60, 200),
    "frozenlake": (60, 200),
    "taxi": (150, 250),
    "pictures": (60, 200),
    "extracted": (60, 200),
    "world": (60, 200),
    "sealed": (60, 200),
    "workers": (60, 200),
}


@pytest.mark.parametrize("stack", [*STACKS, pytest.param("pong", marks=pytest.mark.slow)])
def test_a_stack_made_anew_goes_on_bit_for_bit(start: Any, tmp_path: Path, stack: str) -> None:
    before, after = STACKS.get(stack, (100, 1300))
    run_dir = str(tmp_path / "run")
    first = start(save, stack, run_dir, before, after)
    saved = first.receive("saved")[1]
    assert first.join() == 0
    second = start(go_on, stack, run_dir, after, False)
    assert second.receive("resumed")[1] == saved
    assert second.join() == 0
    assert sum(ended for _, ended in saved) > 0, "no episode ended: the test shows too little"


@pytest.mark.parametrize("stack", ["cartpole", "humanoid", "world", "workers"])
def test_a_stack_that_was_in_use_goes_on_bit_for_bit(
    start: Any, tmp_path: Path, stack: str
) -> None:
    run_dir = str(tmp_path / "run")
    first = start(save, stack, run_dir, 60, 200)
    saved = first.receive("saved")[1]
    assert first.join() == 0
    second = start(go_on, stack, run_dir, 200, True)
    assert second.receive("resumed")[1] == saved
    assert second.join() == 0
