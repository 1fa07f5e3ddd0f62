"""Runs of TorchRL that tests start, kill and resume, and what is compared of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hashes
import numpy as np
import torch
from tensordict import TensorDictBase
from torchrl_models import FRAMES, RANDOM_FRAMES, Parts, learn, make

from pyengine.integrations.torchrl import TrainingRun

EVERY = 32
QUICK = {"every_steps": EVERY, "budget": None, "when_busy": "wait"}


@dataclass(frozen=True)
class Start:
    """One start of a script."""

    folder: Path
    frames: int = FRAMES
    is_stock: bool = False
    """Train without pyengine."""
    kill_at: int | None = None
    """The number of the gradient step, counted in this process, before which it is killed."""
    options: dict[str, Any] = field(default_factory=dict)


def train(
    name: str,
    start: Start,
    restored: Callable[[Parts, TrainingRun], None] = lambda parts, run: None,
    made: Callable[[Parts], None] = lambda parts: None,
    **settings: Any,
) -> tuple[Parts, TrainingRun | None]:
    """Train until `start.frames`; `made` and `restored` look at the parts in between."""
    start.folder.mkdir(exist_ok=True)
    parts = make(name, stock=start.is_stock, **settings)
    made(parts)
    run = None
    if not start.is_stock:
        run = TrainingRun(
            start.folder / "run",
            replay_buffer=parts.buffer,
            collector=parts.collector,
            seed=3,
            **{**QUICK, **start.options},
        )
        run.track(**parts.tracked)
        parts.report = run.restore()
        restored(parts, run)
    try:
        _loop(parts, start, run)
    finally:
        if run is not None:
            run.close()
    return parts, run


def _loop(parts: Parts, start: Start, run: TrainingRun | None) -> None:
    steps = 0
    # A run that has all its frames goes through no iteration.
    for data in parts.collector:
        rows = data.reshape(-1)
        _note(start, "collected", parts, hashed(rows))
        parts.buffer.extend(rows)
        if parts.collector._frames >= RANDOM_FRAMES:
            parts.exploration.step(rows.numel())
            steps += 1
            if steps == start.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            learn(parts, lambda drawn: _note(start, "drawn", parts, hashed(drawn)))
        if parts.collector._frames >= start.frames:
            break
        if run is not None:
            run.tick()


def _note(start: Start, what: str, parts: Parts, values: Any) -> None:
    with open(start.folder / what, "a") as file:
        file.write(json.dumps([parts.collector._frames, values]) + "\n")


def run(send: Callable[[Any], None], name: str, start: Start) -> None:
    """Train in a process of its own; send ("end", digest, frames that it resumed at)."""
    parts, _ = train(name, start)
    report = getattr(parts, "report", None)
    send(("end", digest(parts, start.folder), report.global_step if report else None))


def digest(parts: Parts, folder: Path) -> dict[str, Any]:
    """Return hashes or values of all that a run ends with."""
    return {
        "policy": hashed(parts.policy.state_dict()),
        "loss": hashed(parts.loss.state_dict()),
        "optimizer": hashed(parts.optimizer.state_dict()),
        "schedule": [parts.scheduler.last_epoch, parts.scheduler.get_last_lr()],
        "target update": parts.updater.counter,
        "rows": hashed(parts.buffer.storage.get(slice(0, len(parts.buffer)))),
        "buffer": [len(parts.buffer), parts.buffer.write_count, parts.buffer.writer._cursor],
        "sampler": hashed(dict(parts.buffer.sampler.state_dict())),
        "frames": parts.collector._frames,
        "statistics": hashed(parts.env.transform[1].state_dict()),
        "generators": hashed(generators(parts)),
        "collected": log(folder / "collected"),
        "drawn": log(folder / "drawn"),
    }


def generators(parts: Parts) -> list[Any]:
    """Return the states of all generators."""
    own = parts.buffer._rng
    return [
        np.random.get_state()[1],
        torch.get_rng_state(),
        own.get_state() if own is not None else None,
    ]


def log(path: Path) -> dict[int, list[Any]]:
    """Return what was noted, by frames; what was noted again by another start once."""
    found: dict[int, list[Any]] = {}
    for line in path.read_text().splitlines():
        frames, value = json.loads(line)
        if value not in found.setdefault(frames, []):
            found[frames].append(value)
    return found


def hashed(value: Any) -> str:
    """Return a hash of what a run holds."""
    return hashes.hashed(value, _plain)


def _plain(value: Any) -> Any:
    return dict(value.items()) if isinstance(value, TensorDictBase) else value
