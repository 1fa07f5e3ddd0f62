"""What the native tests share."""

from sanitized import build, objects

__all__ = ["build", "objects"]
