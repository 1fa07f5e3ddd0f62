from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from crash.faulty_lives import Stage


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """The scenario's run before each of its lives, and how many calls each makes."""
    with Stage(1) as stage:
        yield stage


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    # Hundreds of restores report, and warn of what was done to them.
    logger = logging.getLogger("pyengine")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)
