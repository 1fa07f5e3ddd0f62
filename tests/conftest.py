"""What every test relies on."""

import os
import signal
from collections.abc import Generator

import hypothesis
import pytest


def pytest_configure() -> None:
    """Let two test processes, and the processes that they start, share a machine."""
    # Before torch is loaded anywhere: beside other programs, two threads wait for each other.
    os.environ["OMP_NUM_THREADS"] = "1"
    # Tianshou's kernels do less here than it takes to compile them: 13 s in each process.
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    # How long an example takes says what else the machine does.
    hypothesis.settings.register_profile("shared machine", deadline=None)
    hypothesis.settings.load_profile("shared machine")


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_heard() -> None:
    """Answer SIGINT even where the runner was started in a background that ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports go to the main process as UTF-8, and tests log names that are none."""
    report = yield
    report.sections = [
        (title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections
    ]
    return report
