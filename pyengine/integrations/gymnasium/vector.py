"""Environments in the worker processes of gymnasium's AsyncVectorEnv.

Each must be in a `StatefulEnv`, outermost, whose answers never raise: an exception ends a worker.
"""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from pyengine.integrations.gymnasium.simulators import ObstacleError

_ADVICE = (
    "environments in worker processes are saved only inside pyengine.integrations.gymnasium."
    "StatefulEnv, outermost: AsyncVectorEnv([lambda: StatefulEnv(gym.make(...))] * n)"
)
_MODE = (
    "its workers hide whether the next step is a reset: make it with "
    "autoreset_mode=AutoresetMode.SAME_STEP, or a SyncVectorEnv"
)


class AsyncAdapter:
    """All workers of an AsyncVectorEnv, asked between two steps.

    A worker gets what was sent to all; what is meant for one is left there as the value of the
    attribute `offered` first.
    """

    name = "gymnasium.async"
    rank = 1
    held = frozenset({"action_space", "single_action_space", "_np_random", "_np_random_seed"})

    def matches(self, value: Any) -> bool:
        return isinstance(value, AsyncVectorEnv)

    def get(self, value: Any) -> Any:
        if type(value) is not AsyncVectorEnv:
            raise ObstacleError(f"{type(value).__name__} may do more than AsyncVectorEnv")
        if value.closed or value._state != AsyncState.DEFAULT:
            raise ObstacleError("it is closed, or a step is under way")
        # Gymnasium 1.0 knows one mode only, and no name for it.
        mode = getattr(value, "autoreset_mode", None)
        if mode is None or mode.name == "NEXT_STEP":
            raise ObstacleError(_MODE)
        # What an environment does not know ends its worker; this they all know.
        if not all(value.call("has_wrapper_attr", "class_name")):
            raise ObstacleError(_ADVICE)
        if set(value.call("class_name")) != {"StatefulEnv"}:
            raise ObstacleError(_ADVICE)
        answers = value.call("try_get_state")
        obstacles = [f"[{i}] {error}" for i, (_, error) in enumerate(answers) if error is not None]
        if obstacles:
            raise ObstacleError(*obstacles)
        return {"stacks": [state for state, _ in answers]}

    def check(self, value: Any, state: Any) -> None:
        saved = state["stacks"]
        if len(saved) != value.num_envs:
            raise ValueError(f"{len(saved)} environments, here are {value.num_envs}")
        value.set_attr("offered", saved)
        for i, error in enumerate(value.call("try_check_offered")):
            if error is not None:
                raise ValueError(f"[{i}] {error}")

    def set(self, value: Any, state: Any) -> None:
        value.set_attr("offered", state["stacks"])
        value.call("set_offered")
