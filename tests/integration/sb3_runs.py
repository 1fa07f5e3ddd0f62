"""Runs of Stable-Baselines3 that tests start, kill and resume, and what is compared of them."""

from __future__ import annotations

import csv
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hashes
import numpy as np
import torch
import torch._dynamo  # needed by the first step of an optimizer; here once for all processes
from sb3_models import MODELS
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pyengine.capture import tensor_node
from pyengine.integrations.sb3 import SnapshotCallback, append_logger
from pyengine.integrations.sb3.state import components

STEPS = 240
EVERY_STEPS = 30
LOG_INTERVAL = 3
QUICK = {"every_steps": EVERY_STEPS, "budget": None, "when_busy": "wait", "verbose": 0}
WALL_CLOCK = ("time/fps", "time/time_elapsed")


@dataclass(frozen=True)
class Start:
    """One start of a script."""

    folder: Path
    """Where run directory and logs lie."""
    steps: int = STEPS
    is_stock: bool = False
    """Train without the callback."""
    kill_at: int | None = None
    """The moment (see `Witness`) at which the process is killed."""
    kill_delay: float = 0.0
    """Seconds from that moment to the SIGKILL, which then falls anywhere."""
    options: dict[str, Any] = field(default_factory=dict)


class Witness(BaseCallback):
    """Logs the actions, counts moments, and kills the process at one of them.

    Moments are: an environment stepped and its transition not yet stored; an optimizer about to
    step, which is within train().
    """

    def __init__(self, start: Start) -> None:
        super().__init__()
        self._start = start
        self._actions = start.folder / "actions"
        self.moments = Moments(start.kill_at, start.kill_delay)

    def _on_training_start(self) -> None:
        self._hook = register_optimizer_step_pre_hook(lambda *_: self.moments.pass_one())

    def _on_step(self) -> bool:
        actions = np.asarray(self.locals["actions"]).tolist()
        with open(self._actions, "a") as file:
            file.write(json.dumps([self.num_timesteps, actions]) + "\n")
        self.moments.pass_one()
        return True

    def _on_training_end(self) -> None:
        self._hook.remove()


class Moments:
    """Counts moments; kills the process at one of them. A plain object, so never saved."""

    def __init__(self, kill_at: int | None, delay: float) -> None:
        self.count = 0
        self._kill_at = kill_at
        self._delay = delay

    def pass_one(self) -> None:
        self.count += 1
        if self.count != self._kill_at:
            return
        if self._delay:
            threading.Timer(self._delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def train(
    name: str, start: Start, *others: BaseCallback
) -> tuple[BaseAlgorithm, SnapshotCallback, int]:
    """Start or resume a model of MODELS; return it, the callback and the count of moments."""
    model = MODELS[name]()
    start.folder.mkdir(exist_ok=True)
    model.set_logger(append_logger(start.folder / "logs", ["csv"]))
    own = SnapshotCallback(start.folder / "run", **{**QUICK, **start.options})
    witness = Witness(start)
    callbacks: list[BaseCallback] = [*others, witness]
    if not start.is_stock:
        callbacks = [own, *callbacks]
    model.learn(start.steps, callback=callbacks, log_interval=LOG_INTERVAL)
    return model, own, witness.moments.count


def run(send: Callable[[Any], None], name: str, start: Start) -> None:
    """Train in a process of its own; send ("end", moments, digest, step that it resumed at)."""
    model, own, moments = train(name, start)
    resumed_at = own.report.global_step if own.report is not None else None
    send(("end", moments, digest(model, start.folder), resumed_at))


def run_as_if_on_cuda(send: Callable[[Any], None], name: str, start: Start) -> None:
    """Do as `run`, every tensor of a snapshot saying that it lay on cuda:0."""
    plain = tensor_node.tensor_node

    def say_cuda(component: str, value: torch.Tensor, path: str) -> dict[str, Any]:
        return plain(component, value, path) | {"device": "cuda:0"}

    tensor_node.tensor_node = say_cuda
    run(send, name, start)


def run_phases(send: Callable[[Any], None], name: str, start: Start, *totals: int) -> None:
    """Train by several calls of learn, in a process of its own; send ("end", digest)."""
    start.folder.mkdir(exist_ok=True)
    model = MODELS[name]()
    model.set_logger(append_logger(start.folder / "logs", ["csv"]))
    witness = Witness(start)
    with SnapshotCallback(start.folder / "run", **QUICK) as own:
        for total in totals:
            own.learn(model, total, callback=witness, log_interval=1)
    send(("end", digest(model, start.folder)))


def digest(model: BaseAlgorithm, folder: Path) -> dict[str, Any]:
    """Return hashes or values of all that a run ends with."""
    venv = model.get_env()
    return {
        "policy": hashed(model.policy.state_dict()),
        **{name: hashed(part) for name, part in components(model).items() if name != "policy"},
        "rows": hashed(rows(model)),
        "counters": counters(model),
        "observation": hashed([model._last_obs, getattr(model, "_last_original_obs", None)]),
        "normalizer": hashed([venv.obs_rms, venv.ret_rms])
        if isinstance(venv, VecNormalize)
        else None,
        "generators": hashed([np.random.get_state()[1], torch.get_rng_state()]),
        "actions": action_log(folder / "actions"),
        "log": csv_log(folder / "logs" / "progress.csv"),
    }


def counters(model: BaseAlgorithm) -> dict[str, Any]:
    """Return counters and schedules; episodes without their wall-clock times."""
    names = (
        "num_timesteps", "_episode_num", "_n_updates", "_n_calls", "exploration_rate",
        "_current_progress_remaining", "_total_timesteps",
    )  # fmt: skip
    episodes = [(one["r"], one["l"]) for one in model.ep_info_buffer or ()]
    found = {name: getattr(model, name) for name in names if hasattr(model, name)}
    return {**found, "episodes": episodes, "successes": list(model.ep_success_buffer or ())}


def rows(model: BaseAlgorithm) -> list[Any]:
    """Return the columns of a replay buffer with its place."""
    buffer: Any = getattr(model, "replay_buffer", None)
    if buffer is None:
        return []
    names = (
        "observations", "next_observations", "actions", "rewards", "dones", "timeouts",
        "ep_start", "ep_length", "_current_ep_start",
    )  # fmt: skip
    columns = [getattr(buffer, name) for name in names if hasattr(buffer, name)]
    arrays = [
        {key: np.asarray(column) for key, column in held.items()}
        if isinstance(held, dict)
        else np.asarray(held)
        for held in columns
    ]
    infos = np.asarray(getattr(buffer, "infos", ())).tolist()
    return [*arrays, infos, buffer.pos, buffer.full]


def action_log(path: Path) -> dict[int, list[Any]]:
    """Return actions by step: one a step, unless processes went on from it in different ways."""
    found: dict[int, list[Any]] = {}
    for line in path.read_text().splitlines():
        step, actions = json.loads(line)
        if actions not in found.setdefault(step, []):
            found[step].append(actions)
    return found


def csv_log(path: Path) -> dict[str, dict[str, str]]:
    """Return rows by step, the latest of a step winning, without wall-clock columns."""
    found = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            kept = {
                key: value
                for key, value in row.items()
                if value and key not in WALL_CLOCK and not key.startswith("snapshot/")
            }
            found[row["time/total_timesteps"]] = dict(sorted(kept.items()))
    return found


def hashed(value: Any) -> str:
    """Return a hash of what a model holds, without the wall-clock times of its episodes."""
    return hashes.hashed(value, _plain)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.optim.Optimizer):
        return value.state_dict()
    if isinstance(value, RunningMeanStd):
        value = vars(value)
    return {key: one for key, one in value.items() if key != "t"} if type(value) is dict else value
