"""Stable-Baselines3: snapshots of a whole training run, replay buffer included (extra `sb3`)."""

from __future__ import annotations

from pyengine import errors

__all__ = ["errors"]
