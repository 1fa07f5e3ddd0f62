"""Staging slots whose memory is made before a snapshot needs it, off the hot path."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pyengine
from pyengine.engine import buffers, spare
from pyengine.shm.states import StagingState

MEBIBYTE = 1 << 20


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of arenas that a snapshot had to make itself."""
    sizes: list[int] = []
    make = buffers._reserved

    def note(size_bytes: int, label: str) -> Any:
        sizes.append(size_bytes)
        return make(size_bytes, label)

    monkeypatch.setattr(buffers, "_reserved", note)
    return sizes


@pytest.fixture
def learner() -> tuple[nn.Module, torch.optim.Optimizer]:
    net = nn.Linear(512, 512)
    return net, torch.optim.Adam(net.parameters())


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_the_first_two_snapshots_find_memory_that_is_made(
    tmp_path: Path, learner: tuple[nn.Module, torch.optim.Optimizer], reserved: list[int]
) -> None:
    net, optimizer = learner
    ring = pyengine.ReplayBuffer(
        {"x": pyengine.Field((), "int64"), "p": pyengine.Field((), "float32", mutable=True)},
        capacity=1000,
    )
    with pyengine.SnapshotEngine(tmp_path / "run", every_steps=1_000_000) as engine:
        engine.track(net=net, optimizer=optimizer, replay=ring)
        engine.restore()
        assert engine.tick(0) is None
        step(net, optimizer)
        ring.add(x=1, p=1.0)
        assert engine.tick(1) is None  # finds the moments, which are twice the network
        state = sum(t.nbytes for s in optimizer.state.values() for t in s.values())
        state += sum(parameter.nbytes for parameter in net.parameters())
        spare_bytes = engine._session.buffers._spare.size_bytes
        assert state < spare_bytes < state + MEBIBYTE
        first = engine.snapshot(2)
        assert reserved == []
        assert engine._session.buffers._spare.size_bytes >= state, "for the second slot"
        first.wait(60)
        entry = engine._session.buffers.slots[0].entry
        assert entry.claim(77)
        assert entry.move_staging(77, StagingState.STAGING, StagingState.WRITING)
        engine.snapshot(3).wait(60)  # into the other slot
        assert entry.move_staging(77, StagingState.WRITING, StagingState.FREE)
        assert reserved == []
        assert engine._session.buffers._spare.size_bytes == 0
        taken = sum(slot.arena.taken_bytes for slot in engine._session.buffers.slots if slot.arena)
        assert taken <= 2 * state + 64 * MEBIBYTE


def test_without_room_to_spare_the_snapshot_makes_its_memory_itself(
    tmp_path: Path,
    learner: tuple[nn.Module, torch.optim.Optimizer],
    reserved: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, optimizer = learner
    monkeypatch.setattr(spare, "headroom", lambda: MEBIBYTE)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(net=net, optimizer=optimizer)
        engine.restore()
        assert engine.snapshot(1).wait(60)
    assert len(reserved) == 1


def test_an_engine_that_closes_lets_go_of_memory_in_the_making(
    tmp_path: Path, learner: tuple[nn.Module, torch.optim.Optimizer], monkeypatch: Any
) -> None:
    net, optimizer = learner
    looked, go_on = threading.Event(), threading.Event()

    def wait_here() -> int:
        looked.set()
        assert go_on.wait(60)
        return 1 << 50

    monkeypatch.setattr(spare, "headroom", wait_here)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(net=net, optimizer=optimizer)
        engine.restore()
        assert looked.wait(60)
        making = engine._session.buffers._spare._making
    go_on.set()
    assert making.done.wait(60)
    assert making.give() is None


def test_a_tick_that_is_not_due_raises_nothing_of_what_it_cannot_capture(
    tmp_path: Path, learner: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    net, optimizer = learner
    counters: dict[str, Any] = {"n": 1}
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(net=net, optimizer=optimizer, counters=counters)
        engine.restore()
        counters["bad"] = lambda: None
        step(net, optimizer)
        assert engine.tick(1) is None
        with pytest.raises(pyengine.errors.CaptureError):
            engine.snapshot(2)
