"""The examples of plain loops with small sizes, and where in them something happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyengine.capture.kinds.rng import PROCESS_RNG


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
