"""The state of environments as one value for `engine.track`.

A state is taken and put back between two steps. It is bit-exact or it is refused: whatever is
neither a plain value, nor known, nor listed as deciding nothing is an obstacle.

Not seen, because no attribute leads there: globals of modules, files, other processes. Attributes
of classes are watched (constants.py), not saved. The engine itself saves the generators of the
process (`random`, `numpy.random`).
"""

from __future__ import annotations

from typing import Any

import gymnasium

from pyengine.capture.environment import EnvironmentState
from pyengine.capture.tree import Encoder
from pyengine.errors import CaptureError
from pyengine.integrations.gymnasium.constants import Watch
from pyengine.integrations.gymnasium.rebuild import Plan
from pyengine.integrations.gymnasium.rules import GYMNASIUM, Rules
from pyengine.integrations.gymnasium.walk import Walk, left_out

_SHOWN = 5


class StackState:
    """State of everything that attributes of `root` lead to, by `rules`.

    Keeps references only; not thread-safe; used by the process that owns `root`, between steps.
    `component` names the state in errors.
    """

    def __init__(self, root: Any, rules: Rules, *, component: str = "environment") -> None:
        self.root = root
        self.rules = rules
        self.component = component
        self._watch = Watch()

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Why the state cannot be saved as it is now, each with the attribute; else empty."""
        walk = self._walk()
        if walk.obstacles:
            return tuple(walk.obstacles)
        try:
            Encoder(self.component).encode(walk.tree())
        except CaptureError as error:
            return (str(error),)
        return ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """What `get_state` leaves out where a StatefulEnv with `partial=True` lets it, and why."""
        return tuple(left_out(self._walk().tree()))

    def get_state(self) -> dict[str, Any]:
        """Return the state as it is now; nothing in it changes with later steps.

        Raises CaptureError where an obstacle has come up.
        """
        walk = self._walk()
        if walk.obstacles:
            shown = "; ".join(walk.obstacles[:_SHOWN])
            raise CaptureError(f"{self.component!r}: {shown}", component=self.component)
        return walk.tree()

    def check_state(self, state: Any) -> None:
        """Raise StateMismatchError where `state` does not fit; change nothing."""
        Plan(self._walk(), state, self.component)

    def set_state(self, state: Any) -> None:
        """Continue from `state`; StateMismatchError, before any change, where it does not fit.

        The environments need not have been reset. An exception of a simulator or of an object's
        own `set_state` comes through and leaves them half changed: reset them then.
        """
        Plan(self._walk(), state, self.component).apply()

    def tracked(self) -> EnvironmentState:
        """Return what `engine.track` is to get: with it, restored episodes go on."""
        return EnvironmentState(get=self.get_state, set=self.set_state, check=self.check_state)

    def _walk(self) -> Walk:
        return Walk(self.root, self.rules, self._watch)


class EnvState(StackState):
    """State of one gymnasium environment, or vector environment, with all its wrappers.

    In an AsyncVectorEnv each environment must be in a `StatefulEnv`, outermost, and episodes begin
    in the step in which the last ones end (AutoresetMode.SAME_STEP).
    """

    def __init__(self, env: gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv) -> None:
        super().__init__(env, GYMNASIUM)
