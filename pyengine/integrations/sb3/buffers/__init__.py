"""Replay buffers of Stable-Baselines3 whose rows live in a ring."""

from pyengine.integrations.sb3.buffers.adopt import Adoption, adopt

__all__ = ["Adoption", "adopt"]
