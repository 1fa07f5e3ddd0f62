"""Runs of a machine with CUDA go on without, and the other way round.

There is no CUDA here. What a snapshot from there holds is made by letting every tensor say that it
lay on cuda:0; where tensors go on a machine that has one is seen with the device "meta".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("stable_baselines3")

from processes import await_writers_end
from sb3_models import MODELS
from sb3_runs import Start, run, run_as_if_on_cuda

from pyengine.integrations.sb3.state import ExplorationState, ModelState

NAMES = ["SAC", "A2C", *(["RecurrentPPO"] if "RecurrentPPO" in MODELS else [])]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_cuda_goes_on_with_the_cpu(
    start: Any, token: str, tmp_path: Path, name: str
) -> None:
    whole = start(run, name, Start(tmp_path / "whole"))
    killed = Start(tmp_path / "killed", kill_at=90)
    assert start(run_as_if_on_cuda, name, killed).join() == -9
    await_writers_end(token)
    saved = [path.read_bytes() for path in (killed.folder / "run").rglob("*") if path.is_file()]
    assert any(b"cuda:0" in content for content in saved)
    resumed = start(run, name, Start(killed.folder))
    _, moments, expected, _ = whole.receive("end")
    _, fewer, found, resumed_at = resumed.receive("end")
    assert found == expected
    assert resumed_at
    assert fewer < moments


def test_tensors_of_the_cpu_go_to_the_models_device() -> None:
    model = MODELS["A2C"]()
    model.policy.reset_noise(2)
    model._last_lstm_states = (torch.zeros(2), (torch.ones(3),))
    states = [kind(model).get_state() for kind in (ModelState, ExplorationState)]
    model.device = torch.device("meta")
    for kind, state in zip((ModelState, ExplorationState), states, strict=True):
        kind(model).set_state(state)
    first, (second,) = model._last_lstm_states
    distribution = model.policy.action_dist
    for tensor in (first, second, distribution.exploration_mat, distribution.exploration_matrices):
        assert tensor.device.type == "meta"
