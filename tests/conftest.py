"""What every test relies on."""

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_heard() -> None:
    """Answer SIGINT even where the runner was started in a background that ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
