"""A run that goes on in another shape or on another machine: mapped, or refused with both sides.

No machine of the tests has a GPU: snapshots are made to say that tensors lay on cuda:1 and that two
GPUs had generators, which is all that a restore knows of it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pyengine
from pyengine import errors
from pyengine.capture import tensor_node
from pyengine.capture.build import build_component
from pyengine.capture.kinds import rng
from pyengine.engine import runtime

ROWS = 1000


class Learner:
    """A network, Adam, a ring, counters with a tensor, and an object that gives tensors."""

    def __init__(self, seed: int, *, envs: int = 4, rows: int = ROWS) -> None:
        torch.manual_seed(seed)
        self.net = nn.Linear(3, 2)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.ring = pyengine.ReplayBuffer({"obs": ((3,), "float32")}, rows, num_envs=envs, seed=7)
        self.counters: dict[str, Any] = {"updates": 0}
        self.noise = torch.zeros(3)

    def get_state(self) -> dict[str, Any]:
        return {"noise": self.noise}

    def set_state(self, state: dict[str, Any]) -> None:
        self.noise = state["noise"]

    def track(self, engine: pyengine.SnapshotEngine) -> None:
        engine.track(
            net=self.net,
            optimizer=self.optimizer,
            replay=self.ring,
            counters=self.counters,
            noise=self,
        )

    def train(self) -> None:
        for step in range(3):
            self.ring.add(obs=np.full((self.ring.num_envs, 3), step, np.float32))
            loss = self.net(torch.randn(3)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.counters["updates"] += 1
        self.noise = torch.randn(3)
        self.counters["trace"] = torch.ones(2)

    def digest(self) -> str:
        tensors = [*self.net.parameters(), self.noise]
        state = repr([one.tolist() for one in tensors]) + repr(self.counters["updates"])
        moments = [value["exp_avg"].tolist() for value in self.optimizer.state.values()]
        return state + repr(moments)


@pytest.fixture(params=[True, False], ids=["two GPUs", "CPU"])
def run(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, str, bool]:
    """A run of 4 environments and 1,000 rows, its digest, and whether it was on cuda:1."""
    on_gpu: bool = request.param
    learner = Learner(0)
    with monkeypatch.context() as patch:
        if on_gpu:
            _say_cuda(patch)
        with pyengine.SnapshotEngine(tmp_path / "run") as engine:
            learner.track(engine)
            engine.declare_level("exact")
            engine.restore()
            learner.train()
            engine.snapshot(2).wait(60)
    return tmp_path / "run", learner.digest(), on_gpu


def _say_cuda(patch: pytest.MonkeyPatch) -> None:
    plain = tensor_node.tensor_node

    def say(component: str, value: torch.Tensor, path: str) -> dict[str, Any]:
        return plain(component, value, path) | {"device": "cuda:1"}

    patch.setattr(tensor_node, "tensor_node", say)
    states = [torch.get_rng_state(), torch.get_rng_state()]
    patch.setattr(rng, "_cuda_states", lambda: states)
    patch.setattr(runtime, "_devices", lambda captured: ["cuda:1"])


def _restore(run_dir: Path, learner: Learner, **options: Any) -> pyengine.RestoreReport:
    with pyengine.SnapshotEngine(run_dir) as engine:
        learner.track(engine)
        return engine.restore(**options)


def test_what_optimizers_hold_elsewhere_is_no_device_of_the_run() -> None:
    net = nn.Linear(3, 2)
    module = build_component("net", net).capture()
    fresh = build_component("optimizer", torch.optim.Adam(net.parameters())).capture()
    step = torch.zeros((), device="meta")
    stepped = dataclasses.replace(fresh, names=["state/0/step"], values=[step])
    devices = [runtime.runtime([module, one])[runtime.DEVICES] for one in (fresh, stepped)]
    assert devices == ["cpu", "cpu"]
    elsewhere = dataclasses.replace(module, names=["weight"], values=[step])
    assert runtime.runtime([module, elsewhere])[runtime.DEVICES] == "cpu, meta"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test lacks")
def test_without_the_gpus_state_goes_to_the_cpu_and_every_difference_is_told(
    run: tuple[Path, str, bool],
) -> None:
    run_dir, digest, on_gpu = run
    learner = Learner(1)
    report = _restore(run_dir, learner)
    assert learner.digest() == digest
    assert report.rows == 12
    assert learner.counters["trace"].device.type == "cpu"
    assert report.level is not None
    if not on_gpu:
        assert report.level.name == "exact"
        assert report.notes == ()
        return
    lost = [f"process_rng: no cuda:{i} here, its generator is left out" for i in range(2)]
    moved = "saved on cuda:1, which is not here: it goes to cpu"
    assert {*lost, f"counters/trace: {moved}", f"noise/noise: {moved}"} <= set(report.notes)
    assert report.level.name == "state-complete"
    assert report.level.reasons == ("devices: cuda:1 when it was saved, cpu here", *lost)


@pytest.mark.parametrize(
    ("envs", "rows", "told"),
    [
        (2, ROWS, "num_envs: 2 here, 4 there"),
        (8, ROWS, "num_envs: 8 here, 4 there"),
        (4, 500, "capacity: 500 here, 1000 there"),
        (4, 2000, "capacity: 2000 here, 1000 there"),
    ],
)
def test_another_shape_of_ring_is_refused_with_both_sides_and_what_can_be_done(
    run: tuple[Path, str, bool], envs: int, rows: int, told: str
) -> None:
    run_dir, digest, _ = run
    learner = Learner(1, envs=envs, rows=rows)
    learner.train()
    before = learner.digest()
    with pytest.raises(errors.StateMismatchError) as raised:
        _restore(run_dir, learner)
    assert told in str(raised.value)
    assert "replay='skip'" in str(raised.value)
    assert learner.digest() == before
    assert len(learner.ring) == 3 * envs
    report = _restore(run_dir, Learner(2), replay="exact")
    assert report.rows == 12  # nothing was lost by the attempt
    other = Learner(3, envs=envs, rows=rows)
    report = _restore(run_dir, other, replay="skip")
    assert other.digest() == digest
    assert (len(other.ring), report.component("replay").found) == (0, "skipped")
    assert report.level is not None
    assert report.level.name == "partial"
    assert report.level.reasons[-1].startswith("replay: skipped")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test lacks")
@pytest.mark.parametrize("nested", [False, True])
def test_a_generator_of_another_kind_of_device_is_refused_with_both_sides(
    tmp_path: Path, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyengine.capture import rngs, tree

    saved_state = rngs.rng_state

    def of_cuda(value: Any) -> dict[str, Any]:
        return saved_state(value) | {"device": "cuda"}

    def tracked() -> dict[str, Any]:
        generator = torch.Generator()
        return {"generator": {"own": generator} if nested else generator}

    with monkeypatch.context() as patch, pyengine.SnapshotEngine(tmp_path / "run") as engine:
        patch.setattr(tree, "rng_state", of_cuda)
        engine.track(**tracked(), counters={"a": 1}).restore()
        engine.snapshot(0).wait(60)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(**tracked(), counters={"a": 2})
        with pytest.raises(errors.StateMismatchError, match="kind of device") as raised:
            engine.restore()
        assert (raised.value.expected, raised.value.got) == ("cpu", "cuda")
        assert "restore(allow=['generator'])" in str(raised.value)


def test_gpus_that_were_not_there_are_told(
    run: tuple[Path, str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, _, on_gpu = run
    if not on_gpu:
        pytest.skip("no generator of a GPU was saved")
    seeded: list[int] = []
    monkeypatch.setattr(rng, "_cuda_count", lambda: 3)
    monkeypatch.setattr(rng, "is_cuda_used", lambda: True)
    monkeypatch.setattr(rng, "_cuda_states", list)
    monkeypatch.setattr(rng, "_check_torch_state", lambda cpu, cuda: None)
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, index: seeded.append(index), raising=True
    )
    report = _restore(run_dir, Learner(1))
    told = "process_rng: no cuda:2 was there, its generator stays as it is"
    assert [note for note in report.notes if note.startswith("process_rng")] == [told]
    assert seeded == [0, 1]
    assert report.level is not None
    assert told in report.level.reasons
