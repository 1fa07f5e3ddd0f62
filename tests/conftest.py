"""What every test relies on."""

import os
import signal

import hypothesis
import pytest


def pytest_configure() -> None:
    """Let two test processes, and the processes that they start, share a machine."""
    # Before torch is loaded anywhere: beside other programs, two threads wait for each other.
    os.environ["OMP_NUM_THREADS"] = "1"
    # How long an example takes says what else the machine does.
    hypothesis.settings.register_profile("shared machine", deadline=None)
    hypothesis.settings.load_profile("shared machine")


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_heard() -> None:
    """Answer SIGINT even where the runner was started in a background that ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
