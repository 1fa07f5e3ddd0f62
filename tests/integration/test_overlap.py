"""Snapshots whose large tensors are copied after the tick: bit-identical, or failed and told."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import committed
from torch import nn

import pyengine
from pyengine import errors
from pyengine.engine.late import BackgroundCopier, LateStaging
from pyengine.shm.states import SnapshotState, StagingState

SIDE = 160
"""Its square of float32 may wait."""


class Learner:
    """Two tied layers, batch statistics, a target network, an optimizer that steps them."""

    def __init__(self, kind: str = "adam") -> None:
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(SIDE, SIDE), nn.BatchNorm1d(SIDE), nn.Linear(SIDE, SIDE))
        self.net[2].weight = self.net[0].weight
        self.target = copy.deepcopy(self.net)
        self.optimizer = OPTIMIZERS[kind](self.net.parameters())
        self.scaler = torch.amp.GradScaler("cpu", enabled=kind == "scaled", growth_interval=2)
        self.counters = {"steps": 0}

    def track(self, engine: pyengine.SnapshotEngine) -> None:
        engine.track(
            net=self.net,
            target=self.target,
            optimizer=self.optimizer,
            scaler=self.scaler,
            counters=self.counters,
        )

    def backward(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", enabled=self.scaler.is_enabled()):
            loss = self.net(torch.randn(8, SIDE)).square().mean()
        self.scaler.scale(loss).backward()

    def step(self) -> None:
        self.backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        with torch.no_grad():
            for ours, theirs in zip(self.target.parameters(), self.net.parameters(), strict=True):
                ours.lerp_(theirs, 0.1)
        self.counters["steps"] += 1


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "fused adam": lambda p: torch.optim.Adam(p, fused=True),
    "foreach adam": lambda p: torch.optim.Adam(p, foreach=True, amsgrad=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "plain": lambda p: torch.optim.SGD(p, lr=0.01),
    "scaled": torch.optim.Adam,
}


@pytest.fixture
def overlapped(tmp_path: Path) -> Iterator[tuple[pyengine.SnapshotEngine, Learner]]:
    learner = Learner()
    learner.step()
    with pyengine.SnapshotEngine(tmp_path / "run", overlap=True) as engine:
        learner.track(engine)
        engine.restore()
        yield engine, learner


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be copied in the background: the window stays open until somebody closes it."""
    monkeypatch.setattr(BackgroundCopier, "start", lambda copier, late: None)


def words_of(engine: pyengine.SnapshotEngine, pending: Any) -> tuple[StagingState, SnapshotState]:
    for entry in engine._session.control.entries:
        if entry.staging[0] == pending.sequence:
            return entry.staging[1], entry.snapshot[1]
    raise AssertionError("no entry speaks of it")


def train(run_dir: Path, kind: str, *, overlap: bool) -> list[dict[str, Any]]:
    """Return the files of state of every snapshot of a run; each is followed by a step at once."""
    learner = Learner(kind)
    with pyengine.SnapshotEngine(
        run_dir, every_steps=3, budget=None, keep_last=100, when_busy="wait", overlap=overlap
    ) as engine:
        learner.track(engine)
        engine.restore()
        for step in range(1, 20):
            learner.step()
            engine.tick(step)
    return [state_of(Path(info.path)) for info in pyengine.open_run(run_dir).snapshots]


def state_of(snapshot: Path) -> dict[str, Any]:
    """Return a snapshot's files but for times, and for generators that other tests draw from."""
    files: dict[str, Any] = {
        str(path.relative_to(snapshot)): path.read_bytes()
        for folder in ("model", "optimizer")
        for path in (snapshot / folder).iterdir()
    }
    files["meta.json"] = json.loads((snapshot / "meta.json").read_text())
    del files["meta.json"]["created_at"]
    return files


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_overlapped_snapshots_are_those_of_synchronous_ones_bit_for_bit(
    tmp_path: Path, kind: str
) -> None:
    plain = train(tmp_path / "plain", kind, overlap=False)
    late = train(tmp_path / "late", kind, overlap=True)
    assert len(plain) == len(late) == 6
    for one, other in zip(plain, late, strict=True):
        assert {"model/net.safetensors", "model/target.safetensors"} < set(one)
        assert set(one) == set(other)
        differing = [name for name, data in one.items() if other[name] != data]
        assert differing == []


@pytest.mark.usefixtures("idle")
def test_the_step_after_a_tick_finishes_the_copy_first(
    overlapped: tuple[pyengine.SnapshotEngine, Learner],
) -> None:
    engine, learner = overlapped
    pending = engine.snapshot(1)
    assert words_of(engine, pending) == (StagingState.STAGING, SnapshotState.PENDING)
    before = pending.stall_seconds
    weight = learner.net[0].weight.detach().clone()
    moment = learner.optimizer.state[learner.net[0].weight]["exp_avg"].detach().clone()
    target = learner.target[0].weight.detach().clone()
    learner.target[0].weight.data.zero_()  # no optimizer owns it: copied in the tick
    learner.backward()
    assert words_of(engine, pending) == (StagingState.STAGING, SnapshotState.PENDING)
    learner.optimizer.step()
    assert words_of(engine, pending)[0] != StagingState.STAGING
    assert pending.stall_seconds > before
    found = pyengine.load(pending.wait(60).path)
    assert torch.equal(found["net"]["0.weight"], weight)
    assert torch.equal(found["target"]["0.weight"], target)
    assert torch.equal(found["optimizer"]["state"][0]["exp_avg"], moment)


def test_the_background_alone_finishes_the_copy(
    overlapped: tuple[pyengine.SnapshotEngine, Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = overlapped
    settled = threading.Event()
    wake = engine._taker._cutter._on_settled
    monkeypatch.setattr(engine._taker._cutter, "_on_settled", lambda: (settled.set(), wake()))
    pending = engine.snapshot(1)
    assert settled.wait(60)
    assert words_of(engine, pending)[0] != StagingState.STAGING
    assert pending.wait(60)


def in_place(learner: Learner) -> None:
    with torch.no_grad():
        learner.net[0].weight.add_(1)


def load_state_dict(learner: Learner) -> None:
    learner.net.load_state_dict(copy.deepcopy(learner.net.state_dict()))


def another_optimizer(learner: Learner) -> None:
    learner.net[0].weight.grad = torch.ones(SIDE, SIDE)
    torch.optim.SGD([learner.net[0].weight], lr=0.1).step()


def moments(learner: Learner) -> None:
    learner.optimizer.state[learner.net[0].weight]["exp_avg"].zero_()


CHANGES = {
    in_place: ("net", "0.weight"),
    load_state_dict: ("net", "0.weight"),
    another_optimizer: ("net", "0.weight"),
    moments: ("optimizer", "state/0/exp_avg"),
}


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changes_otherwise_fails_the_snapshot_and_is_named(
    overlapped: tuple[pyengine.SnapshotEngine, Learner], change: Callable[[Learner], None]
) -> None:
    engine, learner = overlapped
    good = engine.snapshot(1).wait(60)
    torn = engine.snapshot(2)
    change(learner)
    learner.step()
    assert words_of(engine, torn) == (StagingState.FREE, SnapshotState.FAILED)
    with pytest.raises(errors.ChangedWhileStagedError, match="after the tick") as caught:
        engine.tick(3)
    assert (caught.value.component, caught.value.tensor) == CHANGES[change]
    assert caught.value.sequence == torn.sequence
    newer = engine.snapshot(4).wait(60)
    assert committed(engine.run_dir) == [good.name, newer.name]


@pytest.mark.usefixtures("idle")
def test_after_finish_staging_anything_may_change(
    overlapped: tuple[pyengine.SnapshotEngine, Learner],
) -> None:
    engine, learner = overlapped
    engine.finish_staging()
    weight = learner.net[0].weight.detach().clone()
    pending = engine.snapshot(1)
    engine.finish_staging()
    in_place(learner)
    found = pyengine.load(pending.wait(60).path, only=["net"])
    assert torch.equal(found["net"]["0.weight"], weight)


@pytest.mark.usefixtures("idle")
def test_by_policy_a_torn_snapshot_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner = Learner()
    learner.step()
    with pyengine.SnapshotEngine(tmp_path / "run", overlap=True, on_error="warn") as engine:
        learner.track(engine)
        engine.restore()
        torn = engine.snapshot(2)
        in_place(learner)
        learner.step()
        assert engine.tick(3) is None
        assert "0.weight was changed after the tick" in caplog.text
        with pytest.raises(errors.ChangedWhileStagedError):
            torn.wait(60)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("debug", [True, False])
def test_writes_that_no_version_tells_of_are_found_by_hashes_alone(
    tmp_path: Path, debug: bool
) -> None:
    learner = Learner()
    learner.step()
    with pyengine.SnapshotEngine(
        tmp_path / "run", overlap=True, debug_staging=debug, on_error="warn"
    ) as engine:
        learner.track(engine)
        engine.restore()
        assert engine.snapshot(1).wait(60)
        pending = engine.snapshot(2)
        learner.net[0].weight.data.add_(1)
        learner.step()
        if debug:
            with pytest.raises(errors.ChangedWhileStagedError, match=r"0\.weight"):
                pending.wait(60)
        else:
            assert pending.wait(60)


def test_a_learner_that_is_not_at_rest_is_found(tmp_path: Path) -> None:
    live = torch.zeros(500_000)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            live.data.add_(1)

    with pyengine.SnapshotEngine(tmp_path / "run", debug_staging=True) as engine:
        engine.track(live=live)
        engine.restore()
        assert engine.snapshot(1).wait(60)
        thread = threading.Thread(target=write)
        thread.start()
        try:
            with pytest.raises(errors.ChangedWhileStagedError, match="at rest") as caught:
                take_many(engine)
        finally:
            done.set()
            thread.join()
        assert caught.value.component == "live"
        assert engine.snapshot(1000).wait(60)


def take_many(engine: pyengine.SnapshotEngine) -> None:
    for step in range(2, 1000):
        engine.snapshot(step).wait(60)


@pytest.mark.usefixtures("idle")
def test_a_snapshot_cancelled_in_the_window_frees_its_slot_once_nobody_copies(
    overlapped: tuple[pyengine.SnapshotEngine, Learner],
) -> None:
    engine, learner = overlapped
    pending = engine.snapshot(1)
    assert engine._session.cancel_pending("a test") == 1
    assert words_of(engine, pending) == (StagingState.STAGING, SnapshotState.CANCELLED)
    learner.step()
    assert words_of(engine, pending) == (StagingState.FREE, SnapshotState.CANCELLED)
    with pytest.raises(errors.SnapshotCancelledError):
        pending.wait(60)
    assert engine.snapshot(2).wait(60)


@pytest.mark.usefixtures("idle")
def test_the_next_snapshot_and_a_restore_finish_the_one_before(
    overlapped: tuple[pyengine.SnapshotEngine, Learner],
) -> None:
    engine, _ = overlapped
    first = engine.snapshot(1)
    second = engine.snapshot(2)
    assert words_of(engine, first)[0] != StagingState.STAGING
    assert words_of(engine, second) == (StagingState.STAGING, SnapshotState.PENDING)
    with contextlib.suppress(errors.RestoreError):  # it is pending still, or was just committed
        engine.restore()
    assert words_of(engine, second)[0] != StagingState.STAGING
    assert first.wait(60)
    assert second.wait(60)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("timeout", [60, 0])
def test_close_in_the_window_saves_the_snapshot_and_lets_go_of_the_optimizer(
    tmp_path: Path, timeout: float
) -> None:
    learner = Learner()
    learner.step()
    engine = pyengine.SnapshotEngine(tmp_path / "run", overlap=True, on_error="warn")
    learner.track(engine)
    engine.restore()
    engine.snapshot(1)
    assert len(learner.optimizer._optimizer_step_pre_hooks) == 1
    engine.close(timeout=timeout)
    assert len(learner.optimizer._optimizer_step_pre_hooks) == 0
    learner.step()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:  # waits for the writer
        assert committed(tmp_path / "run") == ["step-00000001.g0001.s0001"]
        learner.track(engine)
        assert engine.restore().next_step == 2


@pytest.mark.usefixtures("idle")
def test_an_engine_that_nobody_closes_publishes_what_it_has_staged(tmp_path: Path) -> None:
    learner = Learner()
    learner.step()
    engine = pyengine.SnapshotEngine(tmp_path / "run", overlap=True)
    learner.track(engine)
    engine.restore()
    engine.snapshot(1)
    del engine
    assert len(learner.optimizer._optimizer_step_pre_hooks) == 0
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        learner.track(engine)
        assert engine.restore().next_step == 2


def test_an_interrupt_while_a_step_waits_comes_before_the_step_and_loses_nothing(
    overlapped: tuple[pyengine.SnapshotEngine, Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, learner = overlapped
    monkeypatch.setattr(BackgroundCopier, "start", lambda copier, late: None)
    pending = engine.snapshot(1)
    weight = learner.net[0].weight.detach().clone()
    finish = LateStaging.finish

    def interrupted(late: LateStaging) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        finish(late)

    learner.backward()
    monkeypatch.setattr(LateStaging, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learner.optimizer.step()
    monkeypatch.setattr(LateStaging, "finish", finish)
    assert torch.equal(learner.net[0].weight, weight)
    found = pyengine.load(pending.wait(60).path, only=["net"])
    assert torch.equal(found["net"]["0.weight"], weight)


@pytest.mark.usefixtures("idle")
def test_a_child_that_is_forked_in_the_window_steps_alone(
    overlapped: tuple[pyengine.SnapshotEngine, Learner],
) -> None:
    engine, learner = overlapped
    weight = learner.net[0].weight.detach().clone()
    learner.backward()
    pending = engine.snapshot(1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)  # the threads of torch's pool are not in the child
            learner.optimizer.step()
            status = 0 if not torch.equal(learner.net[0].weight, weight) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert words_of(engine, pending) == (StagingState.STAGING, SnapshotState.PENDING)
    learner.optimizer.step()
    found = pyengine.load(pending.wait(60).path, only=["net"])
    assert torch.equal(found["net"]["0.weight"], weight)


def test_where_no_thread_can_be_started_the_tick_copies_all(
    overlapped: tuple[pyengine.SnapshotEngine, Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = overlapped
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "pyengine-late":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pending = engine.snapshot(1)
    assert words_of(engine, pending)[0] != StagingState.STAGING
    assert pending.wait(60)


KILLED = """
import os, signal, sys, torch, pyengine
from pyengine.engine.late import BackgroundCopier
BackgroundCopier.start = lambda copier, late: None
torch.manual_seed(0)
net = torch.nn.Linear(160, 160)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
engine = pyengine.SnapshotEngine(sys.argv[1], overlap=True)
engine.track(net=net, optimizer=optimizer)
engine.restore()
engine.snapshot(1).wait(60)
pending = engine.snapshot(2)
assert not pending.is_done
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trainer_killed_in_the_window_leaves_the_snapshot_before(tmp_path: Path) -> None:
    root = Path(pyengine.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "run"],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    torch.manual_seed(0)
    expected = nn.Linear(160, 160)
    net = nn.Linear(160, 160)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(net=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
        assert engine.restore().next_step == 2
        assert committed(tmp_path / "run") == ["step-00000001.g0001.s0001"]
        assert torch.equal(net.weight, expected.weight)
        assert engine.snapshot(2).wait(60)
