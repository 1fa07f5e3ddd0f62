"""Environments in the worker processes of SubprocVectorEnv and ShmemVectorEnv.

A worker answers two questions besides step and reset: the value of an attribute of the outermost
wrapper, and setting one of the innermost environment. `StatefulEnv` makes that enough: its
attribute `answer` works on the request that was left at the innermost.
"""

from __future__ import annotations

from typing import Any

from tianshou.env.worker import SubprocEnvWorker

from pyengine.integrations.gymnasium import stateful
from pyengine.integrations.gymnasium.simulators import ObstacleError

_REQUEST = "_pyengine_request"
_ADVICE = (
    "environments in worker processes are saved only inside "
    "pyengine.integrations.tianshou.StatefulEnv, outermost: "
    "SubprocVectorEnv([lambda: StatefulEnv(gym.make(...))] * n)"
)


class StatefulEnv(stateful.StatefulEnv):
    """Lets the environment in it be saved from another process; put it outermost."""

    _answer: tuple[Any, str | None] = (None, "nothing was asked")

    @property
    def answer(self) -> tuple[Any, str | None]:
        """Do what the request says; return (state or None, why it failed or None).

        A worker reads an attribute twice, first to see whether it is there: without a new request
        the answer is the former one.
        """
        request, state = vars(self.env.unwrapped).pop(_REQUEST, (None, None))
        if request == "get":
            self._answer = self.try_get_state()
        elif request is not None:
            error = self.try_check_state(state)
            if error is None and request == "set":
                self.set_state(state)
            self._answer = None, error
        return self._answer


class SubprocAdapter:
    """One worker process, asked between two steps."""

    name = "tianshou.subproc"
    rank = 1
    held = frozenset({"is_reset", "action_space"})

    def matches(self, value: Any) -> bool:
        return isinstance(value, SubprocEnvWorker)

    def get(self, value: Any) -> Any:
        if value.is_closed:
            raise ObstacleError("it is closed")
        state, error = _ask(value, "get")
        if error is not None:
            raise ObstacleError(error)
        return state

    def check(self, value: Any, state: Any) -> None:
        _, error = _ask(value, "check", state)
        if error is not None:
            raise ValueError(error)

    def set(self, value: Any, state: Any) -> None:
        _, error = _ask(value, "set", state)
        if error is not None:
            raise ValueError(error)


def _ask(worker: Any, request: str, state: Any = None) -> tuple[Any, str | None]:
    worker.set_env_attr(_REQUEST, (request, state))
    answer = worker.get_env_attr("answer")
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise ObstacleError(_ADVICE)
    found: tuple[Any, str | None] = answer
    return found
