"""How an environment's state becomes part of a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyengine.errors import ConfigError


class EnvironmentState:
    """Two functions that give and take the state of environments, for `engine.track`.

    `get()` returns the state: numbers, text, bytes, arrays, tensors and containers of them, in any
    nesting and of any length; what it returns is copied before `tick()` returns, so live arrays are
    fine. It is called at every snapshot, inside `tick()` and in its thread.

    `set(state)` gets an equal value of its own back, once in a restore, and must leave the
    environments exactly as they were: with it the episodes go on, so restored rows get no break.
    It comes after modules, optimizers and rings and before all generators.

    `check(state)`, if given, raises for a state that does not fit, before a restore has changed
    anything; `set` is not called then.

    Both hold the training loop as long as they take. What `get` raises comes out of `tick` and
    nothing is staged; what `set` raises comes out of `restore`, which then has to be repeated. The
    object keeps both functions alive, and they are used in the process that made it only.

    Raises ConfigError where one cannot be called.

        env_state = pyengine.EnvironmentState(
            get=lambda: env.unwrapped.clone_state(include_rng=True).serialize(), set=put_back)
        engine.track(policy=net, environment=env_state)
    """

    def __init__(
        self,
        *,
        get: Callable[[], Any],
        set: Callable[[Any], Any],
        check: Callable[[Any], Any] | None = None,
    ) -> None:
        if not callable(get) or not callable(set) or not (check is None or callable(check)):
            raise ConfigError("EnvironmentState takes functions: get(), set(state), check(state)")
        self.get = get
        self.set = set
        self.check = check
