"""Gymnasium environments, with every wrapper around them, as part of a snapshot.

    state = EnvState(env)
    if not state.obstacles:
        engine.track(policy=net, environment=state.tracked())

`Resumable` puts the same behind `get_state` and `set_state` of a wrapper, for workers elsewhere.
"""

from pyengine.integrations.gymnasium.resumable import Resumable
from pyengine.integrations.gymnasium.state import EnvState, StackState

__all__ = ["EnvState", "Resumable", "StackState"]
