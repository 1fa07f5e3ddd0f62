"""How an environment's state becomes part of a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyengine.errors import ConfigError


class EnvironmentState:
    """Two functions that give and take the state of environments, for `engine.track`.

    `get()` returns the state: numbers, text, bytes, arrays, tensors and containers of them, in any
    nesting; bytes of any length are fine. It is called at every snapshot, inside `tick()`.
    `set(state)` gets an equal value back, once, during restore, and must leave the environments
    exactly as they were: with it the episodes go on, so restored rows get no break. Neither may
    block for long.

        env_state = pyengine.EnvironmentState(
            get=lambda: env.unwrapped.clone_state(include_rng=True).serialize(), set=put_back)
        engine.track(policy=net, environment=env_state)
    """

    def __init__(self, *, get: Callable[[], Any], set: Callable[[Any], Any]) -> None:
        if not callable(get) or not callable(set):
            raise ConfigError("EnvironmentState takes two functions: get() and set(state)")
        self.get = get
        self.set = set
