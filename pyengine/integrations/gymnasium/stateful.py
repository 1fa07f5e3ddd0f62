"""A wrapper that gives and takes the state of the environment in it.

Put it outermost: where the environment lives in another process nothing else can ask for its state.

    venv = make_vec_env("CartPole-v1", 8, wrapper_class=StatefulEnv, vec_env_cls=SubprocVecEnv)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium

from pyengine.errors import CaptureError, ConfigError, StateMismatchError
from pyengine.integrations.gymnasium.rules import GYMNASIUM, Given
from pyengine.integrations.gymnasium.state import StackState
from pyengine.integrations.gymnasium.walk import left_out


class StatefulEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds `get_state()` and `set_state(state)`, which cover the whole chain below it.

    Environments and wrappers of plain attributes, those with get_state() and set_state(state) of
    their own, Atari and MuJoCo are known. Of an innermost environment that is none of these
    `get(env)` returns the state, plain values, and `set(env, state)` puts it back, between two
    steps; wrappers around it are seen to as ever.

    What cannot be saved is an obstacle, and `get_state` refuses. With `partial=True` it saves the
    rest, and `left_out` names what is left as the script made it: such a run is no exact
    continuation, and says so. The `try_` methods tell errors as text, for callers that an exception
    would not reach. Raises ConfigError where one of `get` and `set` is missing.
    """

    offered: Any = None
    """A state left here for `set_offered`, by those who can call methods only without arguments."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        get: Callable[[Any], Any] | None = None,
        set: Callable[[Any, Any], Any] | None = None,
        partial: bool = False,
    ) -> None:
        super().__init__(env)
        if (get is None) != (set is None):
            raise ConfigError("StatefulEnv takes both get(env) and set(env, state), or neither")
        given = () if get is None or set is None else (Given(env.unwrapped, get, set),)
        self._stack = StackState(env, replace(GYMNASIUM, given=given, is_partial=partial))

    def get_state(self) -> dict[str, Any]:
        """Return the state; CaptureError where it cannot be saved."""
        return self._stack.get_state()

    def set_state(self, state: Any) -> None:
        """Continue from `state`; StateMismatchError, before any change, where it does not fit."""
        self._stack.set_state(state)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What `get_state` leaves out, and why; empty unless `partial`. Raises as it does."""
        return tuple(left_out(self.get_state()))

    def try_get_state(self) -> tuple[Any, str | None]:
        """Return (state, None) or (None, why not)."""
        try:
            return self.get_state(), None
        except CaptureError as error:
            return None, str(error)

    def try_check_state(self, state: Any) -> str | None:
        """Return None or why `state` does not fit; change nothing."""
        try:
            self._stack.check_state(state)
        except StateMismatchError as error:
            return str(error)
        return None

    def try_check_offered(self) -> str | None:
        """Return None or why `offered` does not fit, and let it go; change nothing else."""
        return self.try_check_state(self._take_offered())

    def set_offered(self) -> None:
        """Continue from `offered`, and let it go."""
        self.set_state(self._take_offered())

    def _take_offered(self) -> Any:
        state, self.offered = self.offered, None
        return state
