"""Fixtures of the integration tests: real processes, marked so that leftovers are found."""

from processes import forkserver, start, token

__all__ = ["forkserver", "start", "token"]
