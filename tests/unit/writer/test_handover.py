"""What the trainer hands over once is taken over, now or later, and nothing of it is lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trainer_side import Ring

from pyengine.shm.arena import Arena
from pyengine.shm.channel import Channel
from pyengine.shm.control import CONTROL_BYTES, EngineControl
from pyengine.writer import session as session_module
from pyengine.writer.session import Session


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    ours, theirs = Channel.pair()
    with ours, Arena.create(CONTROL_BYTES, "control") as arena:
        control = EngineControl.create(arena, generation=1, run_id="r")
        hello = {"run_dir": str(tmp_path), "generation": 1, "size": CONTROL_BYTES}
        hello |= {"keep_last": 3, "keep_best": None}
        session = Session(theirs, hello, os.dup(arena.fd))
        yield session
        session.close()
        control.release()


def hand_over(session: Session, ring: Ring) -> None:
    message = {
        "kind": "ring",
        "name": ring.name,
        "size": ring.arena.size_bytes,
        "schema": ring.schema.to_record(),
    }
    session.take(message, [os.dup(ring.arena.fd), os.dup(ring.seal_event)])


def hand_over_staging(session: Session, arena: Arena, version: int) -> None:
    message = {"kind": "staging", "index": 0, "version": version, "size": arena.size_bytes}
    session.take(message, [os.dup(arena.fd)])


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def failing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next arena not be mapped, as where memory is short for a moment."""
    attach = Arena.attach
    failures = [OSError(errno.ENOMEM, "on purpose")]

    def once(fd: int, *arguments: Any) -> Arena:
        if failures:
            os.close(fd)
            raise failures.pop()
        return attach(fd, *arguments)

    monkeypatch.setattr(session_module.Arena, "attach", once)
    monkeypatch.setattr(session_module, "_RETRY_SECONDS", 0.0)


def test_a_ring_that_cannot_be_mapped_is_tried_again_beside_the_former(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Ring("replay", 64, 1), Ring("replay", 64, 1)
    hand_over(session, first)
    before = open_fds()
    failing_once(monkeypatch)
    hand_over(session, second)
    assert session.rings["replay"].arena.identity == first.arena.identity
    session.take_again()
    assert session.rings["replay"].arena.identity == second.arena.identity
    session.close_retired([])
    assert open_fds() == before
    first.close()
    second.close()


def test_staging_memory_that_cannot_be_mapped_is_tried_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Arena.create(4096, "one") as one, Arena.create(8192, "two") as two:
        hand_over_staging(session, one, 1)
        before = open_fds()
        failing_once(monkeypatch)
        hand_over_staging(session, two, 2)
        assert session.stagings[0].version == 1
        session.take_again()
        assert session.stagings[0].version == 2
        assert open_fds() == before


def test_what_makes_no_sense_leaves_no_descriptor(session: Session) -> None:
    ring = Ring("replay", 64, 1)
    before = open_fds()
    for body in ({"schema": {}}, {"size": 1}, {"size": 1, "schema": {"x": 3}}):
        message = {"kind": "ring", "name": "replay", **body}
        session.take(message, [os.dup(ring.arena.fd), os.dup(ring.seal_event)])
    assert session.rings == {}
    session.take_again()
    assert open_fds() == before
    ring.close()
