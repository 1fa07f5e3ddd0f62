"""The state of a Stable-Baselines3 VecEnv, wrappers and environments included.

    state = VecEnvState(model.get_env())
    if not state.obstacles:
        engine.track(environment=state.tracked(), ...)

Where there are obstacles the environments have to be reset: `reset_after_restore`. Statistics of
VecNormalize survive that by themselves: `normalizer_state`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecMonitor,
    VecNormalize,
)
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from pyengine.errors import StateMismatchError
from pyengine.integrations.gymnasium.rules import GYMNASIUM, Rules
from pyengine.integrations.gymnasium.state import StackState
from pyengine.integrations.sb3.workers import SubprocAdapter

_NUMBERS = ("mean", "var", "count")


def _rules() -> Rules:
    return replace(
        GYMNASIUM,
        followed=(*GYMNASIUM.followed, VecEnv, RunningMeanStd, StackedObservations),
        skipped_types=GYMNASIUM.skipped_types | {f"{Monitor.__module__}:ResultsWriter"},
        skipped_names={
            **GYMNASIUM.skipped_names,
            VecEnv: frozenset({"metadata", "render_mode"}),
            VecEnvWrapper: frozenset({"class_attributes"}),
            # Every step writes them before it reads them.
            DummyVecEnv: frozenset({"buf_infos", "actions"}),
            # Times in the files of results count from the start that their header names.
            Monitor: frozenset({"t_start"}),
            VecMonitor: frozenset({"t_start"}),
        },
        outputs={**GYMNASIUM.outputs, VecEnv: frozenset({"reset_infos"})},
        beside_methods={
            **GYMNASIUM.beside_methods,
            VecEnv: frozenset({"action_space", "observation_space", "_seeds", "_options"}),
            VecEnvWrapper: frozenset({"venv"}),
        },
        adapters=(*GYMNASIUM.adapters, SubprocAdapter()),
    )


class VecEnvState(StackState):
    """State of a VecEnv: see StackState. Infos of the last step are not part of it.

    Everything else that decides what the next steps return is: what a script sets differently
    (a limit on episodes, say) has the snapshot's value after `set_state`.
    """

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv, _rules())


def normalizers(venv: VecEnv) -> list[VecNormalize]:
    """Return the VecNormalize wrappers around a VecEnv, outermost first."""
    found = []
    inner: Any = venv
    while isinstance(inner, VecEnvWrapper):
        if isinstance(inner, VecNormalize):
            found.append(inner)
        inner = inner.venv
    return found


def normalizer_state(venv: VecEnv) -> list[dict[str, dict[str, Any]]]:
    """Return the statistics of every VecNormalize, independent of later steps."""
    return [
        {name: _numbers(statistics) for name, statistics in _statistics(normalizer).items()}
        for normalizer in normalizers(venv)
    ]


def set_normalizer_state(venv: VecEnv, state: list[dict[str, dict[str, Any]]]) -> None:
    """Put statistics back; StateMismatchError, before any change, where they do not fit."""
    live = [_statistics(normalizer) for normalizer in normalizers(venv)]
    here = [{name: np.shape(item.mean) for name, item in each.items()} for each in live]
    saved = [{name: np.shape(item["mean"]) for name, item in each.items()} for each in state]
    if here != saved:
        raise StateMismatchError(
            f"'normalizer': other observations (here: {here}, in the snapshot: {saved})",
            component="normalizer",
            expected=here,
            got=saved,
        )
    for statistics, numbers in zip(live, state, strict=True):
        for name, item in statistics.items():
            for key in _NUMBERS:
                setattr(item, key, _copy(numbers[name][key]))


def reset_after_restore(venv: VecEnv, seed: int) -> Any:
    """Reset all environments and return the first observations.

    Seeds of environment i come from `seed` + i. Statistics of VecNormalize stay as they are:
    nothing that a reset shows is counted a second time.
    """
    training = [(normalizer, normalizer.training) for normalizer in normalizers(venv)]
    try:
        for normalizer, _ in training:
            normalizer.training = False
        venv.seed(seed)
        return venv.reset()
    finally:
        for normalizer, was_training in training:
            normalizer.training = was_training


def _statistics(normalizer: VecNormalize) -> dict[str, RunningMeanStd]:
    observations = getattr(normalizer, "obs_rms", None) if normalizer.norm_obs else None
    if isinstance(observations, dict):
        found = {f"observation {key}": item for key, item in observations.items()}
    else:
        found = {} if observations is None else {"observation": observations}
    return {**found, "return": normalizer.ret_rms}


def _numbers(statistics: RunningMeanStd) -> dict[str, Any]:
    return {key: _copy(getattr(statistics, key)) for key in _NUMBERS}


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
