"""The examples of plain loops, run as `python` does: killed, cut into short starts, or spoiled.

An engine that watches takes the place of the script's. It sees what the script tracks, what was
done in each step, and what everything came to; the examples know nothing of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import io
import itertools
import os
import runpy
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hashes
import numpy as np
import pytest
import torch
import torch._dynamo  # needed by the first step of an optimizer; here once for all processes
from leaving_out import leave_out_component

import pyengine
from pyengine.capture.kinds.rng import PROCESS_RNG

EXAMPLES = Path(__file__).parents[2] / "examples"
CLOCKS = ("time_queue", "episode_start_time")
"""Attributes of gymnasium's RecordEpisodeStatistics that tell wall-clock time."""


@dataclass(frozen=True)
class Example:
    """A script with sizes that let everything happen within a second or two."""

    file: str
    steps: int
    sizes: dict[str, Any]
    steps_option: str
    run_option: str
    acts: str
    """module:class whose `step(action)` shows the actions."""
    tick: int
    """Steps from one tick to the next."""
    every: int
    """Steps from snapshot to snapshot."""
    kills: tuple[int, int]
    """Steps in which it is killed: before learning starts, and before the end of an episode."""
    cut: int
    """Where a snapshot is taken that shows components to be needed."""
    cuts: dict[str, int] = field(default_factory=dict)
    """Other such places, for components that matter only there."""
    only_told: frozenset[str] = frozenset()
    """Components that say how far a run is, and decide nothing."""
    unused: frozenset[str] = frozenset()
    """What an engine saves unasked, and such a script does not use."""


PENDULUM: dict[str, Any] = {
    "capacity": 240, "num-envs": 2, "learning-starts": 110, "batch-size": 8, "width": 16,
}  # fmt: skip
OFF_POLICY: dict[str, Any] = {
    "steps": 220,
    "steps_option": "total-steps",
    "run_option": "run",
    "acts": "gymnasium.vector:SyncVectorEnv",
    "tick": 1,
    "every": 30,
    "kills": (95, 195),
    "cut": 150,
    "cuts": {"done": 199},
}
LOOPS = {
    "sac": Example(file="sac.py", sizes=PENDULUM, **OFF_POLICY),
    "td3": Example(file="td3.py", sizes=PENDULUM, **OFF_POLICY),
    "ppo": Example(
        file="ppo.py",
        steps=640,
        sizes={"num-envs": 4, "rollout-steps": 8, "epochs": 2, "minibatches": 2, "width": 16},
        steps_option="total-steps",
        run_option="run",
        acts="gymnasium.vector:SyncVectorEnv",
        tick=32,
        every=96,
        kills=(255, 479),
        cut=319,
        only_told=frozenset({"counters"}),
    ),
    "ppo at time limits": Example(
        file="ppo.py",
        steps=1280,
        sizes={"env-id": "MountainCar-v0", "num-envs": 4, "rollout-steps": 40, "width": 16},
        steps_option="total-steps",
        run_option="run",
        acts="gymnasium.vector:SyncVectorEnv",
        tick=160,
        every=160,
        kills=(479, 1119),
        cut=639,
    ),
    "dqn": Example(
        file="dqn_atari.py",
        steps=100,
        sizes={
            "game": "BreakoutNoFrameskip-v4", "capacity": 48, "learning-starts": 24,
            "batch-size": 4, "train-every": 8, "target-every": 25, "exploration-steps": 100,
            "threads": 1,
        },
        steps_option="steps",
        run_option="run-dir",
        acts="atari:Atari",
        tick=1,
        every=20,
        kills=(22, 75),
        cut=60,
        only_told=frozenset({"counters"}),
        unused=frozenset({PROCESS_RNG}),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Start:
    """One start of a script."""

    folder: Path
    every: int | None = None
    """Steps from snapshot to snapshot; None for none but the last."""
    cuts: tuple[int, ...] = ()
    """Steps after which a snapshot is taken besides."""
    kill_at: int | None = None
    """The step that is done when the process dies by SIGKILL."""
    ticks: int | None = None
    """Begin anew, as a new start would, after so many ticks."""
    left_out: tuple[str, ...] = ()
    """Components that a restore leaves as the script made them."""


class EndOfChunk(SystemExit):
    """Ends a script in its place, after a snapshot."""


class Witness:
    """What was seen of one start."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.objects: dict[str, Any] = {}
        self.resumed_at: int | None = None
        self.end: dict[str, str] = {}
        self.actions: list[Any] = []
        self.drawn: list[Any] = []
        self.ticks = 0
        self._send = send

    def see(self, step: int) -> None:
        """Tell what was done since the last tick."""
        self.ticks += 1
        done = {
            "actions": hashes.hashed(self.actions),
            "drawn": hashes.hashed(self.drawn),
            "rates": [
                group["lr"]
                for one in self.objects.values()
                if isinstance(one, torch.optim.Optimizer)
                for group in one.param_groups
            ],
            "alpha": [one.item() for name, one in self.objects.items() if name == "log_alpha"],
            "counters": dict(self.objects["counters"]),
        }
        self._send(("step", step, done))
        self.actions, self.drawn = [], []

    def finish(self) -> None:
        """Note what everything has come to."""
        self.end = {name: hashes.hashed(one, plain) for name, one in self.objects.items()}
        self.end[PROCESS_RNG] = hashes.hashed(torch.get_rng_state())


def plain(value: Any) -> Any:
    """Turn what the examples track into values that can be hashed."""
    if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
        return value.state_dict()
    if isinstance(value, pyengine.EnvironmentState):
        return value.get()
    if isinstance(value, pyengine.ReplayBuffer):
        rows = value.gather(value.refs())
        return [dict(rows.values_by_field), value.refs(), value.header_record()["sampler"]]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return vars(value)
    if isinstance(value, dict):
        return {} if _is_space(value) else {k: one for k, one in value.items() if k not in CLOCKS}
    if isinstance(value, (enum.Enum, np.dtype)):
        return str(value)
    return value.hex() if isinstance(value, bytes) else value


def _is_space(node: dict[str, Any]) -> bool:
    """Return whether this is a space of an environment: most get their seed from the system.

    What is drawn from the others shows in the actions.
    """
    return str(node.get("type", "")).startswith("gymnasium.spaces.")


def run(example: Example, start: Start, witness: Witness) -> None:
    """Run a script to its end in this process; EndOfChunk where a chunk ends before."""

    class Watched(pyengine.SnapshotEngine):
        def __init__(self, run_dir: Any, **options: Any) -> None:
            super().__init__(run_dir, **{**options, "budget": None, "when_busy": "wait"})

        def track(self, **objects: Any) -> pyengine.SnapshotEngine:
            witness.objects.update(objects)
            return super().track(**objects)

        def restore(self, **options: Any) -> Any:
            report = super().restore(**options)
            witness.resumed_at = report.next_step - 1 if report else None
            return report

        def tick(self, step: int, metrics: Any = None) -> Any:
            witness.see(step)
            if step == start.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            pending = super().tick(step, metrics)
            if step in start.cuts:
                self.snapshot(step).wait(60)
            if witness.ticks == start.ticks and step + 1 < example.steps:
                self.snapshot(step).wait(60)
                raise EndOfChunk
            return pending

        def close(self, **options: Any) -> None:
            if not witness.end:
                witness.finish()
            super().close(**options)

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        _watch_draws(patch, witness, example.acts)
        for name in start.left_out:
            leave_out_component(name, patch)
        patch.setattr(pyengine, "SnapshotEngine", Watched)
        patch.setattr(sys, "argv", [example.file, *arguments(example, start)])
        runpy.run_path(str(EXAMPLES / example.file), run_name="__main__")


def arguments(example: Example, start: Start) -> list[str]:
    """Return the command line of a start."""
    sizes = {
        **example.sizes,
        example.steps_option: example.steps,
        example.run_option: start.folder / "run",
        "snapshot-every": start.every or 10**9,
    }
    return [text for name, value in sizes.items() for text in (f"--{name}", str(value))]


def _watch_draws(patch: pytest.MonkeyPatch, witness: Witness, acts: str) -> None:
    module, _, name = acts.partition(":")
    kind: Any = getattr(importlib.import_module(module), name)
    step, sample = kind.step, pyengine.ReplayBuffer.sample

    def watched_step(self: Any, action: Any) -> Any:
        witness.actions.append(action)
        return step(self, action)

    def watched_sample(self: Any, *values: Any, **options: Any) -> Any:
        batch = sample(self, *values, **options)
        witness.drawn.append(batch.indices.copy())
        return batch

    patch.setattr(kind, "step", watched_step)
    patch.setattr(pyengine.ReplayBuffer, "sample", watched_sample)


def run_child(send: Callable[[Any], None], name: str, start: Start) -> None:
    """Run to the end in a process of its own, chunk after chunk.

    Sends ("step", step, what was done) for each tick and ("end", hashes, step resumed at, starts).
    """
    os.chdir(start.folder)
    for starts in itertools.count(1):
        witness = Witness(send)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                run(LOOPS[name], start, witness)
        except EndOfChunk:
            continue
        send(("end", witness.end, witness.resumed_at, starts))
        return


@dataclass
class Seen:
    """What the starts of a run have told, each step once."""

    steps: dict[int, Any] = field(default_factory=dict)
    end: dict[str, str] | None = None
    resumed_at: int | None = None
    starts: int = 0

    def add(self, messages: list[Any]) -> Seen:
        """Count a start in; what was done again must be what was done before."""
        for kind, *told in messages:
            if kind == "step":
                step, done = told
                assert self.steps.setdefault(step, done) == done, f"step {step} went another way"
            else:
                self.end, self.resumed_at, self.starts = told
        return self
