"""A save that goes on in the background."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pending:
    """How to wait until a save is complete, and how to ask whether it is."""

    wait: Callable[[], object]
    is_done: Callable[[], bool]
