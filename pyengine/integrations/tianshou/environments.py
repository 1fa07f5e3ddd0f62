"""The state of Tianshou's vectorised environments, wrappers and workers included.

Environments in processes of their own answer only to what their outermost wrapper knows: put each
in `StatefulEnv`, outermost. Where something cannot be saved, environments are reset instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tianshou.env import BaseVectorEnv
from tianshou.env.venv_wrappers import VectorEnvNormObs, VectorEnvWrapper
from tianshou.env.worker import EnvWorker
from tianshou.utils import RunningMeanStd

from pyengine.errors import StateMismatchError
from pyengine.integrations.gymnasium.rules import GYMNASIUM, Rules
from pyengine.integrations.gymnasium.state import StackState
from pyengine.integrations.tianshou.workers import SubprocAdapter

_NUMBERS = ("mean", "var", "count")


def _rules() -> Rules:
    return replace(
        GYMNASIUM,
        followed=(*GYMNASIUM.followed, BaseVectorEnv, EnvWorker, RunningMeanStd),
        skipped_names={
            **GYMNASIUM.skipped_names,
            BaseVectorEnv: frozenset({"_env_fns", "worker_class"}),
            # Every step writes the result before it is read.
            EnvWorker: frozenset({"_env_fn", "result"}),
        },
        beside_methods={**GYMNASIUM.beside_methods, VectorEnvWrapper: frozenset({"venv"})},
        adapters=(*GYMNASIUM.adapters, SubprocAdapter()),
    )


class VectorEnvState(StackState):
    """State of a vectorised environment: see StackState."""

    def __init__(self, venv: Any) -> None:
        super().__init__(venv, _rules())


def normalizers(venv: Any) -> list[VectorEnvNormObs]:
    """Return the normalising wrappers around a vectorised environment, outermost first."""
    found = []
    while isinstance(venv, VectorEnvWrapper):
        if isinstance(venv, VectorEnvNormObs):
            found.append(venv)
        venv = venv.venv
    return found


def normalizer_state(venv: Any) -> list[dict[str, Any]]:
    """Return the statistics of every normaliser; they outlive a reset."""
    live = [normalizer.get_obs_rms() for normalizer in normalizers(venv)]
    return [{name: getattr(one, name) for name in _NUMBERS} for one in live]


def set_normalizer_state(venv: Any, state: list[dict[str, Any]]) -> None:
    """Put statistics back; StateMismatchError where there are other normalisers."""
    live = normalizers(venv)
    if len(live) != len(state):
        raise StateMismatchError(
            f"'normalizer': {len(live)} normalising wrappers here, {len(state)} in the snapshot",
            component="normalizer",
            expected=len(live),
            got=len(state),
        )
    for normalizer, numbers in zip(live, state, strict=True):
        for name, value in numbers.items():
            setattr(normalizer.get_obs_rms(), name, value)


def reset_after_restore(collector: Any, seed: int) -> None:
    """Reset the environments of a collector; environment i is seeded with `seed` + i.

    Statistics of normalisers stay as they are: nothing that a reset shows is counted twice.
    """
    updating = [(one, one.update_obs_rms) for one in normalizers(collector.env)]
    try:
        for normalizer, _ in updating:
            normalizer.update_obs_rms = False
        collector.env.seed(seed)
        collector.reset_env()
    finally:
        for normalizer, was_updating in updating:
            normalizer.update_obs_rms = was_updating
