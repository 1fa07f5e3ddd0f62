"""Fixtures of the ring's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from pyengine.replay import reserving


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Let Python change threads as often as it can, so that a race shows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the thread that keeps slots free: what happens, a call did."""
    monkeypatch.setattr(reserving, "_POLL_SECONDS", 600)
