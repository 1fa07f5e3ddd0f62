"""The link to the writer: one writer at a time, and descriptors of its own."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyengine.engine import link as link_module
from pyengine.engine.link import WriterLink
from pyengine.shm.arena import Arena
from pyengine.shm.channel import Channel, close_all


class FakeWriter:
    """Stands for a writer process: alive until told otherwise."""

    made: list[FakeWriter]

    def __init__(self, path: Sequence[str]) -> None:
        self.path = path
        self.channel, self.theirs = Channel.pair()
        self.alive = True
        self.released = False
        self.pid = len(self.made) + 1
        self.made.append(self)

    def is_alive(self) -> bool:
        return self.alive and not self.released

    def describe_end(self) -> str:
        return "ended"

    def release(self) -> None:
        self.released = True
        self.channel.close()

    def kill(self) -> None:
        self.release()

    def received(self) -> dict[str, list[int]]:
        """Return the inodes of the descriptors that came, by kind of message."""
        found: dict[str, list[int]] = {}
        while True:
            item = self.theirs.receive(0)
            if item is None:
                return found
            message, fds = item
            found[message["kind"]] = [os.fstat(fd).st_ino for fd in fds]
            close_all(fds)


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeWriter]]:
    FakeWriter.made = []
    monkeypatch.setattr(link_module, "WriterProcess", FakeWriter)
    yield FakeWriter.made
    for writer in FakeWriter.made:
        writer.theirs.close()
        writer.channel.close()


@pytest.fixture
def control() -> Iterator[Arena]:
    with Arena.create(4096, "control") as arena:
        yield arena


def new_link(control: Arena, run_dir: Path) -> WriterLink:
    hello = {"run_dir": str(run_dir), "generation": 1}
    return WriterLink(hello, control, lambda message: None)


def with_handler_at(line: int, call: Callable[[], Any], handler: Callable[[], Any]) -> bool:
    """Call `call` and `handler` before the n-th line of the link that this thread runs, as Python
    runs a signal handler; return whether that line was reached."""
    left = line

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith("engine/link.py"):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                handler()
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return left <= 0


def test_a_handler_in_the_midst_of_a_replacement_never_makes_a_second_writer(
    writers: list[FakeWriter], control: Arena, tmp_path: Path
) -> None:
    for line in itertools.count(1):
        link = new_link(control, tmp_path)
        writers[-1].alive = False
        reached = with_handler_at(line, link.poll, link.poll)
        living = [writer for writer in writers if not writer.released]
        assert [writer.pid for writer in living] == [link.pid], f"line {line}"
        assert len(writers) == 2
        link.release()
        assert all(writer.released for writer in writers)
        writers.clear()
        if not reached:
            break
    assert line > 5


def test_the_next_writer_gets_the_memory_whatever_became_of_its_number(
    writers: list[FakeWriter], control: Arena, tmp_path: Path
) -> None:
    link = new_link(control, tmp_path)
    arena = Arena.create(4096, "ring")
    event = os.eventfd(0, os.EFD_CLOEXEC)
    wanted = os.fstat(arena.fd).st_ino
    link.give_ring("replay", arena, event, schema={})
    assert writers[0].received()["ring"][0] == wanted
    number = arena.fd
    arena.close()
    stranger = os.open(os.devnull, os.O_RDONLY)
    if stranger != number:
        os.dup2(stranger, number)
        os.close(stranger)
    writers[0].alive = False
    link.poll()
    try:
        assert writers[1].received()["ring"][0] == wanted
    finally:
        os.close(number)
        os.close(event)
        link.release()


def test_the_next_writer_imports_from_where_the_first_did(
    writers: list[FakeWriter], control: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory is gone by then; a relative entry of the path means what it meant."""
    (tmp_path / "run").mkdir()
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.syspath_prepend("relative")
    link = new_link(control, tmp_path)
    (tmp_path / "gone").rmdir()
    writers[0].alive = False
    link.poll()
    assert [writer.path for writer in writers] == [writers[0].path] * 2
    assert writers[0].path[0] == str(tmp_path / "gone" / "relative")
    link.release()


def test_a_link_closes_every_descriptor_it_made(
    writers: list[FakeWriter], control: Arena, tmp_path: Path
) -> None:
    event = os.eventfd(0, os.EFD_CLOEXEC)
    with Arena.create(4096, "ring") as arena:
        before = len(os.listdir("/proc/self/fd"))
        link = new_link(control, tmp_path)
        for version in range(3):
            link.give_ring("replay", arena, event, schema={})
            link.give_staging(0, version, arena)
        link.release()
        writers[0].theirs.close()
        assert len(os.listdir("/proc/self/fd")) == before
    os.close(event)
