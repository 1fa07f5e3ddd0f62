"""Fixtures of the unit tests."""

from small_runs import make, run, spawn

__all__ = ["make", "run", "spawn"]
