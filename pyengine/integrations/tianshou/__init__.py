"""Tianshou: one call starts a training and resumes it where it stopped, bit for bit."""

from pyengine.integrations.tianshou.run import SnapshotRun
from pyengine.integrations.tianshou.workers import StatefulEnv

__all__ = ["SnapshotRun", "StatefulEnv"]
