"""Stable-Baselines3: the same line starts a run and resumes it, bit for bit."""

from pyengine.integrations.sb3.callback import SnapshotCallback
from pyengine.integrations.sb3.logs import append_logger

__all__ = ["SnapshotCallback", "append_logger"]
