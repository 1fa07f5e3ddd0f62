"""A wrapper that gives and takes the state of the environment in it.

Put it outermost where the environment lives in another process:

    venv = make_vec_env("CartPole-v1", 8, wrapper_class=Resumable, vec_env_cls=SubprocVecEnv)
"""

from __future__ import annotations

from typing import Any

import gymnasium

from pyengine.errors import CaptureError, StateMismatchError
from pyengine.integrations.gymnasium.state import EnvState


class Resumable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds `get_state()` and `set_state(state)`, which cover everything below it.

    The `try_` methods tell errors as text, for callers that an exception would not reach.
    """

    def get_state(self) -> dict[str, Any]:
        """Return the state; CaptureError where it cannot be saved."""
        return EnvState(self.env).get_state()

    def set_state(self, state: Any) -> None:
        """Continue from `state`; StateMismatchError where it does not fit."""
        EnvState(self.env).set_state(state)

    def try_get_state(self) -> tuple[Any, str | None]:
        """Return (state, None) or (None, why not)."""
        try:
            return self.get_state(), None
        except CaptureError as error:
            return None, str(error)

    def try_check_state(self, state: Any) -> str | None:
        """Return None or why `state` does not fit; change nothing."""
        try:
            EnvState(self.env).check_state(state)
        except StateMismatchError as error:
            return str(error)
        return None
