"""Gymnasium environments, with every wrapper around them, as part of a snapshot.

    state = EnvState(env)
    if not state.obstacles:
        engine.track(policy=net, environment=state.tracked())

`StatefulEnv` puts the same behind `get_state` and `set_state` of a wrapper, for workers elsewhere.
"""

from pyengine.integrations.gymnasium.state import EnvState, StackState
from pyengine.integrations.gymnasium.stateful import StatefulEnv

__all__ = ["EnvState", "StackState", "StatefulEnv"]
