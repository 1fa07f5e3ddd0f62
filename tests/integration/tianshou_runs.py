"""Runs of Tianshou that tests start, kill and resume, and what is compared of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # needed by the first step of an optimizer; here once for all processes
from hashes import hashed
from tianshou.data import Batch
from tianshou_models import build, modules_of
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pyengine.integrations.tianshou import SnapshotRun
from pyengine.integrations.tianshou.buffers.state import parts_of
from pyengine.integrations.tianshou.buffers.trees import leaves_of
from pyengine.integrations.tianshou.walk import Attributes

EVERY_STEPS = 10
QUICK = {"every_steps": EVERY_STEPS, "budget": None, "when_busy": "wait", "verbose": 0}


@dataclass(frozen=True)
class Start:
    """One start of a script."""

    folder: Path
    """Where run directory and results lie."""
    is_stock: bool = False
    """Train without snapshots."""
    kill_at: int | None = None
    """The optimizer's step, of all optimizers, before which the process is killed."""
    stop_at: int | None = None
    """The same, before which the training ends by an exception."""
    options: dict[str, Any] = field(default_factory=dict)
    epochs: int | None = None


class Stopped(Exception):
    """Ends a training of this process."""


@dataclass
class Ended:
    """What a training ended with."""

    algorithm: Any
    params: Any
    stats: Any
    run: SnapshotRun | None
    moments: int


def train(name: str, start: Start, *, before: Callable[[Any, Any], None] | None = None) -> Ended:
    """Start or resume a training of MODELS. `before` may look at it, or change it."""
    algorithm, params = build(name)
    if start.epochs is not None:
        params.max_epochs = start.epochs
    if before is not None:
        before(algorithm, params)
    start.folder.mkdir(exist_ok=True, parents=True)
    moments = [0]

    def pass_one(*_: Any) -> None:
        moments[0] += 1
        if moments[0] == start.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if moments[0] == start.stop_at:
            raise Stopped

    hook = register_optimizer_step_pre_hook(pass_one)
    run = None
    try:
        if start.is_stock:
            stats = algorithm.run_training(params)
        else:
            run = SnapshotRun(start.folder / "run", **{**QUICK, **start.options})
            stats = run.run_training(algorithm, params)
    finally:
        hook.remove()
    return Ended(algorithm, params, stats, run, moments[0])


def run_jobs(send: Callable[[Any], None], *jobs: tuple[str, Start]) -> None:
    """Train each in a process of its own, forked from this one; send ("ended", result) of each.

    The library takes long to import: here once for all of them. A result is an exit status, and a
    digest with the step that was resumed at, where the training came to its end.
    """
    for name, start in jobs:
        pid = os.fork()
        if pid == 0:
            _run_job(name, start)
        _, status = os.waitpid(pid, 0)
        told = start.folder / "digest.json"
        found = json.loads(told.read_text()) if told.exists() else None
        send(("ended", (os.waitstatus_to_exitcode(status), found)))


def _run_job(name: str, start: Start) -> None:
    try:
        ended = train(name, start)
        resumed = ended.run.report.global_step if ended.run and ended.run.report else None
        text = json.dumps({"digest": digest(ended), "resumed": resumed})
        (start.folder / "digest.json").write_text(text)
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def digest(ended: Ended) -> dict[str, str]:
    """Return hashes of all that a run ends with."""
    return {name: hashed(value) for name, value in parts(ended).items()}


def parts(ended: Ended) -> dict[str, Any]:
    """Return all that a run ends with, by name."""
    algorithm, params = ended.algorithm, ended.params
    walk = Attributes(algorithm).walk()
    collector = params.training_collector
    found: dict[str, Any] = {
        "networks": modules_of(algorithm),
        "optimizers": {name: one.state_dict() for name, one in walk.optimizers.items()},
        "schedulers": [one.state_dict()["last_epoch"] for one in walk.schedulers.values()],
        "rates": [group["lr"] for o in walk.optimizers.values() for group in o.param_groups],
        "attributes": {
            place: value for place, _, _, value in walk.plain() if not place.startswith("_buffer")
        },
        "stats": _without_times(ended.stats),
        "numpy": np.random.get_state()[1],
        "torch": torch.get_rng_state(),
        **buffer_parts(collector.buffer),
    }
    for one, who in ((collector, "training"), (params.test_collector, "test")):
        found[f"{who} counters"] = [one.collect_step, one.collect_episode]
        found[f"{who} observation"] = one._pre_collect_obs_RO
        found[f"{who} space"] = [space.np_random for space in one._action_space]
        if hasattr(one.env, "get_obs_rms"):
            found[f"{who} statistics"] = vars(one.env.get_obs_rms())
    return found


def buffer_parts(buffer: Any) -> dict[str, Any]:
    """Return rows and cursors of a buffer, with the rows as they were added."""
    if hasattr(buffer, "_restore_cache"):
        buffer._restore_cache()
    lanes = parts_of(buffer)[1:] or [buffer]
    places = [np.arange(len(lane)) + number * lane.maxsize for number, lane in enumerate(lanes)]
    at = np.concatenate(places).astype(int)
    found: dict[str, Any] = {
        "rows": _read(buffer._meta, at) if len(at) else None,
        "cursors": [
            [int(lane._insertion_idx), int(lane._size), float(lane._ep_return), lane._ep_len,
             int(lane._ep_start_idx)]
            for lane in lanes
        ],
        "last index": np.asarray(buffer.last_index),
        "draws": [part._random_state.get_state()[1] for part in parts_of(buffer)],
    }  # fmt: skip
    if hasattr(buffer, "weight"):
        found["weights"] = [leaves_of(buffer.weight), buffer.weight._value, buffer._beta]
        found["bounds"] = [buffer._max_prio, buffer._min_prio]
    return found


def log_since(ended: Ended, begin: dict[str, int]) -> str:
    """Return a hash of what was logged from a step of each kind on."""
    entries = ended.params.logger.entries
    return hashed(
        {
            kind: {step: data for step, data in found.items() if step >= begin.get(kind, 0)}
            for kind, found in entries.items()
        }
    )


def log_begins(ended: Ended) -> dict[str, int]:
    """Return the first step of each kind that was logged."""
    return {kind: min(found) for kind, found in ended.params.logger.entries.items()}


def _read(batch: Any, at: Any) -> dict[str, Any]:
    return {
        key: _read(value, at) if isinstance(value, Batch) else np.asarray(value[at])
        for key, value in batch.items()
    }


def _without_times(stats: Any) -> list[Any]:
    return [
        stats.update_step, stats.best_score, stats.best_reward, stats.best_reward_std,
        stats.train_step, stats.train_episode, stats.test_step, stats.test_episode,
    ]  # fmt: skip
