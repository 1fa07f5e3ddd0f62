"""What the trainer's side hands to its writer: each ring once, and again after a failure."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import pyengine
from pyengine.engine.session import Session


class FakeLink:
    """Stands for the link; remembers what it was given, fails as it is told."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.failures: list[OSError] = []
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def give_ring(self, name: str, *_: Any, **body: Any) -> None:
        if self.failures:
            raise self.failures.pop()
        self.given.append(name)
        self.entered.set()
        self.go_on.wait()

    def release(self) -> None:
        pass


@pytest.fixture
def ring() -> Iterator[pyengine.ReplayBuffer]:
    with pyengine.ReplayBuffer({"x": ((), "float32")}, capacity=64) as ring:
        ring.add(x=1.0)
        yield ring


def session_with(link: FakeLink) -> Session:
    session = Session()
    session.link = session._link = link  # type: ignore[assignment]  # a stand-in
    return session


def test_two_threads_give_a_ring_once(ring: pyengine.ReplayBuffer) -> None:
    link = FakeLink()
    link.go_on.clear()
    session = session_with(link)
    threads = [
        threading.Thread(target=session.give_ring, args=("replay", ring), daemon=True)
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    assert link.entered.wait(10)
    link.go_on.set()
    for thread in threads:
        thread.join(10)
    assert link.given == ["replay"]


def test_a_ring_that_could_not_be_given_is_given_next_time(ring: pyengine.ReplayBuffer) -> None:
    link = FakeLink()
    link.failures.append(OSError(errno.EMFILE, "on purpose"))
    session = session_with(link)
    with pytest.raises(OSError, match="on purpose"):
        session.give_ring("replay", ring)
    session.give_ring("replay", ring)
    session.give_ring("replay", ring)
    assert link.given == ["replay"]
