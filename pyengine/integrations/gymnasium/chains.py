"""Chains of wrappers that see to their own state: those inside a StatefulEnv of this process."""

from __future__ import annotations

from typing import Any

from pyengine.capture.protocol import type_name
from pyengine.integrations.gymnasium.simulators import ObstacleError


class ChainAdapter:
    """A StatefulEnv, whose rules for what is below it hold there, and no others."""

    name = "chain"
    rank = 1
    held: frozenset[str] = frozenset()

    def matches(self, value: Any) -> bool:
        return type_name(value) == "pyengine.integrations.gymnasium.stateful:StatefulEnv"

    def get(self, value: Any) -> Any:
        state, error = value.try_get_state()
        if error is not None:
            raise ObstacleError(error)
        return {"stacks": [state]}

    def check(self, value: Any, state: Any) -> None:
        (saved,) = state["stacks"]
        error = value.try_check_state(saved)
        if error is not None:
            raise ValueError(error)

    def set(self, value: Any, state: Any) -> None:
        value.set_state(state["stacks"][0])
