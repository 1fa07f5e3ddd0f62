"""The writer's own code in a thread of this process, where a process would cost too much time.

A power-loss sweep restores a hundred thousand times, and goes on from many of those states. Only
the process is left out: claim, channel, shared memory, loop and commit are the real ones.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from unittest import mock

from pyengine.engine import link
from pyengine.shm.channel import Channel
from pyengine.writer import main
from pyengine.writer.loop import Loop
from pyengine.writer.trainer import Trainer
from pyengine.writer.workers import Workers


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
            complete = Loop(session, workers, trainer, signal_fd).run()
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
    """A writer that is there and never does anything."""

    def _work(self, session: main.Session) -> None:
        if session.lock_fd is not None:
            os.close(session.lock_fd)
        session.close()

    def is_alive(self) -> bool:
        return True

    def join(self, seconds: float) -> bool:
        return True


@contextlib.contextmanager
def writers_in_threads(kind: type[ThreadWriter] = ThreadWriter) -> Iterator[None]:
    """Have engines that are made meanwhile start their writers in threads."""
    with mock.patch.object(link, "WriterProcess", kind):
        yield
