"""What the native tests share."""

from sanitized import build  # noqa: F401
