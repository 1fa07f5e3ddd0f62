"""A small off-policy run that integration tests train, kill and resume, in processes of its own.

Everything random comes from saved generators, so that equal digests mean equal futures.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

import pyengine

LANES = 4
ROWS_PER_LANE = 32


class Training:
    """A network, AdamW, a ring of 4 lanes with a mutable field, counters, four kinds of RNG."""

    def __init__(self, seed: int = 0, *, ring: Any = None) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.rng = np.random.default_rng(seed)
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        self.ring = new_ring(seed) if ring is None else ring
        self.counters = {"updates": 0, "epsilon": 1.0}

    def track(self, engine: pyengine.SnapshotEngine) -> None:
        engine.track(
            policy=self.net,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            replay=self.ring,
            counters=self.counters,
            explorer=self.rng,
        )

    def step(self, step: int) -> None:
        """Insert one row a lane and make one gradient step."""
        self.insert(step)
        batch = self.ring.sample(8)
        noise = torch.randn(8, 2) + random.random() + np.random.rand()
        loss = (self.net(torch.from_numpy(batch["obs"])) - noise).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.ring.update(batch.indices, priority=self.rng.random(8).astype(np.float32))
        self.counters["updates"] += 1
        self.counters["epsilon"] *= 0.99

    def insert(self, step: int) -> None:
        """Insert one row a lane; `number` is the insert's number in all."""
        obs = self.rng.standard_normal((LANES, 4)).astype(np.float32)
        number = np.full(LANES, step, np.int64)
        self.ring.add(obs=obs, number=number, check=number * 3 + 1)

    def digest(self) -> dict[str, str]:
        """Return a hash of every part of the state."""
        optimizer = self.optimizer.state_dict()
        moments = [s[key] for s in optimizer["state"].values() for key in sorted(s)]
        rows = self.ring[self.ring.refs()]
        generators = [
            torch.get_rng_state().numpy(),
            np.asarray(random.getstate()[1]),
            np.random.get_state()[1],
            str(self.rng.bit_generator.state),
            str(self.ring.header_record()["sampler"]),
        ]
        return {
            "policy": _hash(*self.net.state_dict().values()),
            "optimizer": _hash(*moments, str(optimizer["param_groups"])),
            "scheduler": _hash(str(sorted(self.scheduler.state_dict().items()))),
            "counters": _hash(json.dumps(self.counters)),
            "rows": _hash(*(rows[name] for name in self.ring.schema)),
            "window": _hash(np.asarray(self.ring.tail), np.asarray(self.ring.total_count)),
            "generators": _hash(*generators),
        }


@contextlib.contextmanager
def tracking(
    run_dir: Any, seed: int = 5, **options: Any
) -> Iterator[tuple[pyengine.SnapshotEngine, Training]]:
    """Give an engine and a new training that it tracks, not yet restored."""
    training = Training(seed)
    with pyengine.SnapshotEngine(run_dir, **options) as engine:
        training.track(engine)
        yield engine, training


def new_ring(seed: int = 0, *, rows_per_lane: int = ROWS_PER_LANE) -> pyengine.ReplayBuffer:
    """Return a ring whose rows hold their number twice over, so that a torn row shows."""
    schema = pyengine.Schema(
        {
            "obs": ((4,), "float32"),
            "number": ((), "int64"),
            "check": ((), "int64"),
            "priority": pyengine.Field((), "float32", mutable=True, default=1.0),
        }
    )
    return pyengine.ReplayBuffer(schema, capacity=LANES * rows_per_lane, num_envs=LANES, seed=seed)


def _hash(*values: Any) -> str:
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, str):
            digest.update(value.encode())
        else:
            array = np.ascontiguousarray(value.detach() if hasattr(value, "detach") else value)
            digest.update(array.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Plan:
    """What `run` does: train to `steps`, take a snapshot at each of `snapshots`."""

    steps: int
    snapshots: tuple[int, ...] = ()
    wait_for: tuple[int, ...] = ()
    """Steps whose snapshot is waited for."""
    kill_self_at: int | None = None
    """SIGKILL to itself right after the tick of this step."""
    faults: tuple[dict[str, Any], ...] = ()
    """A fault plan for the first writer alone."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of SnapshotEngine."""
    restore: dict[str, Any] = field(default_factory=dict)


def run(send: Callable[[Any], None], run_dir: str, plan: Plan) -> None:
    """Train by the plan and send what happened: ("restored", step), ("snapshot", step, digest),
    ("end", digest)."""
    if plan.faults:
        os.environ["PYENGINE_FAULT_PLAN"] = json.dumps(plan.faults)
    training = Training()
    with pyengine.SnapshotEngine(run_dir, **plan.options) as engine:
        # A writer that takes over is not armed.
        os.environ.pop("PYENGINE_FAULT_PLAN", None)
        training.track(engine)
        report = engine.restore(**plan.restore)
        send(("restored", report.global_step, training.digest() if report else None))
        for step in range(report.next_step, plan.steps):
            training.step(step)
            engine.tick(step)
            if step in plan.snapshots:
                digest = training.digest()
                pending = engine.snapshot(step)
                send(("snapshot", step, digest))
                if step in plan.wait_for:
                    pending.wait(60)
            if step == plan.kill_self_at:
                os.kill(os.getpid(), signal.SIGKILL)
        send(("end", training.digest()))
