"""Buffers of Tianshou whose rows live in a ring."""

from pyengine.integrations.tianshou.buffers.adopt import LAYOUT, RING, Adoption, adopt

__all__ = ["LAYOUT", "RING", "Adoption", "adopt"]
