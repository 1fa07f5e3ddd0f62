"""Environments in the worker processes of a SubprocVecEnv.

A worker answers only to names that its outermost wrapper knows, and an exception there ends it. So
each environment must be in a `StatefulEnv`, outermost, whose answers never raise.
"""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.vec_env import SubprocVecEnv

from pyengine.integrations.gymnasium.simulators import ObstacleError

_ADVICE = (
    "environments in worker processes are saved only inside pyengine.integrations.gymnasium."
    "StatefulEnv, outermost: make_vec_env(..., wrapper_class=StatefulEnv)"
)


class SubprocAdapter:
    """All workers of a SubprocVecEnv, asked between two steps."""

    name = "sb3.subproc"
    rank = 1
    held = frozenset({"action_space", "observation_space", "_seeds", "_options", "reset_infos"})

    def matches(self, value: Any) -> bool:
        return isinstance(value, SubprocVecEnv)

    def get(self, value: Any) -> Any:
        if type(value) is not SubprocVecEnv:
            raise ObstacleError(f"{type(value).__name__} may do more than SubprocVecEnv")
        if value.closed or value.waiting:
            raise ObstacleError("it is closed, or a step is under way")
        if not (value.has_attr("try_get_state") and value.has_attr("class_name")):
            raise ObstacleError(_ADVICE)
        if set(value.env_method("class_name")) != {"StatefulEnv"}:
            raise ObstacleError(_ADVICE)
        answers = value.env_method("try_get_state")
        obstacles = [f"[{i}] {error}" for i, (_, error) in enumerate(answers) if error is not None]
        if obstacles:
            raise ObstacleError(*obstacles)
        return {"stacks": [state for state, _ in answers]}

    def check(self, value: Any, state: Any) -> None:
        workers = state["stacks"]
        if len(workers) != value.num_envs:
            raise ValueError(f"{len(workers)} environments, here are {value.num_envs}")
        for i, saved in enumerate(workers):
            error = value.env_method("try_check_state", saved, indices=i)[0]
            if error is not None:
                raise ValueError(f"[{i}] {error}")

    def set(self, value: Any, state: Any) -> None:
        for i, saved in enumerate(state["stacks"]):
            value.env_method("set_state", saved, indices=i)
