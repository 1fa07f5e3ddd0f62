"""The writer's own code in a thread of this process, where a process would cost too much time.

A power-loss sweep restores a hundred thousand times, and goes on from many of those states. Only
the process is left out: claim, channel, shared memory, loop and commit are the real ones.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar
from unittest import mock

from pyengine.engine import buffers, engine, link, restore, session
from pyengine.replay.storage import Storage
from pyengine.shm.channel import Channel
from pyengine.writer import main
from pyengine.writer.loop import Loop
from pyengine.writer.priority import Priority
from pyengine.writer.trainer import Trainer
from pyengine.writer.workers import Workers

T = TypeVar("T")


class ThreadWriter:
    """Stands in for engine.process.WriterProcess."""

    def __init__(self, path: Sequence[str]) -> None:
        self.channel, theirs = Channel.pair()
        self.pid = os.getpid()
        self.pidfd = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, args=(theirs,), daemon=True)
        self._thread.start()

    def _run(self, channel: Channel) -> None:
        try:
            with channel:
                session = main._greet(channel)
                if session is not None:
                    self._work(session)
        finally:
            os.eventfd_write(self.pidfd, 1)

    def _work(self, session: main.Session) -> None:
        trainer = Trainer(os.pidfd_open(os.getpid()))
        signal_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        lock = main.writer_lock(session.run_dir, session.generation, inherited=session.lock_fd)
        with lock, Workers() as workers:
            main._clear_predecessor(session)
            session.take_back()
            session.tell("ready", pid=self.pid)
            complete = Loop(session, workers, trainer, Priority(), signal_fd).run()
            session.tell("drained", complete=complete)
        trainer.close()
        session.close()
        os.close(signal_fd)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def describe_end(self) -> str:
        return "has ended"

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def release(self) -> None:
        self.channel.close()
        self._thread.join()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    kill = disown = release


class NoWriter(ThreadWriter):
    """A writer that is there and never does anything: no thread, nobody at the other end."""

    def __init__(self, path: Sequence[str]) -> None:
        self.channel, theirs = Channel.pair()
        theirs.close()
        self.pid = os.getpid()
        self.pidfd = os.eventfd(0, os.EFD_CLOEXEC)

    def is_alive(self) -> bool:
        return True

    def join(self, seconds: float) -> bool:
        return True

    def release(self) -> None:
        self.channel.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    kill = disown = release


@contextlib.contextmanager
def writers_in_threads(kind: type[ThreadWriter] = ThreadWriter) -> Iterator[None]:
    """Have engines that are made meanwhile start their writers in threads.

    And without the threads that keep signals away and memory ready, which are nothing that a cut
    is about: handing over to them is most of what a small restore costs.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(link, "WriterProcess", kind))
        stack.enter_context(mock.patch.object(Storage, "start_reserving", _do_nothing))
        for module in (buffers, engine, link, restore, session):
            stack.enter_context(mock.patch.object(module, "run_whole", _run_here))
        yield


def _run_here(function: Callable[[], T], *_: object, **__: object) -> T:
    return function()


def _do_nothing(*_: object) -> None:
    return None
