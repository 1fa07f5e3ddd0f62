"""Fixtures of the capture layer's tests."""

from __future__ import annotations

import pytest
from live_snapshot import Snapshot


@pytest.fixture
def snapshot():
    """Take a snapshot of the keyword arguments."""

    def take(**objects):
        return Snapshot(objects)

    return take
