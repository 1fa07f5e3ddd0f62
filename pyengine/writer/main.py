"""The writer process: a fresh interpreter without torch and NumPy, started by the trainer.

`python -m pyengine.writer <socket fd> <pidfd of the trainer>`, or `main` with the same two in an
interpreter whose import path is the trainer's. It outlives the trainer to drain. Exit status 0:
everything was finished; 1: it was not; 2: it never got to work.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from pyengine import config
from pyengine.catalog import commit, janitor
from pyengine.catalog.commit_lock import commit_lock
from pyengine.catalog.endings import Loss, record_end
from pyengine.catalog.generation import writer_lock
from pyengine.errors import ClosedError, PyengineError, RunBusyError, RunError
from pyengine.events import logger
from pyengine.format import names
from pyengine.fs.door import FILE_MODE
from pyengine.shm.channel import Channel
from pyengine.writer.loop import Loop
from pyengine.writer.priority import Priority
from pyengine.writer.session import Session
from pyengine.writer.trainer import Trainer
from pyengine.writer.workers import Workers

_RECORD_SECONDS = 5.0
_CLEAR_SECONDS = 1.0
"""How long a writer waits for the commit lock before it leaves a predecessor's leftovers be."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a writer over the inherited socket, for the process of the inherited pidfd."""
    fd, pidfd = sys.argv[1:] if argv is None else argv
    _leave_terminal()
    priority = Priority()
    priority.yield_to_trainer()
    with Channel.from_fd(int(fd)) as channel:
        trainer = Trainer(int(pidfd))
        session = _greet(channel)
        if session is None:
            return 2
        _log_to(session)
        _silence(2)
        try:
            return _work(session, trainer, priority)
        except BaseException:
            logger.exception("the writer ends by an error")
            raise
        finally:
            logging.shutdown()


def _leave_terminal() -> None:
    """No terminal signal, no output.

    SIGTERM waits until the loop can answer it; the trainer has blocked it before the exec. Standard
    error stays until the log is open: it is what the trainer's error tells of a failed start.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _silence(0, 1)


def _silence(*fds: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


def _greet(channel: Channel) -> Session | None:
    """Take the trainer's first message in; None, said on standard error: there is none to use."""
    try:
        received = channel.receive(config.WRITER_START_SECONDS)
    except ClosedError:
        sys.stderr.write("the trainer let go before its first message\n")
        return None
    if received is None or received[0].get("kind") != "hello" or len(received[1]) not in (1, 2):
        what = "no first message came" if received is None else "the first message makes no sense"
        sys.stderr.write(f"{what} from the trainer\n")
        return None
    message, fds = received
    return Session(channel, message, *fds)


def _log_to(session: Session) -> None:
    name = names.generation_log_name(session.generation)
    path = os.path.join(session.run_dir, names.GENERATIONS, name)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    # Made here, so that no umask lets everybody write it.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.info("writer of generation %d started", session.generation)


def _work(session: Session, trainer: Trainer, priority: Priority) -> int:
    # A predecessor that is still at it (stopped, then continued) must be gone before anything of
    # the control block is touched.
    lock = writer_lock(session.run_dir, session.generation, inherited=session.lock_fd)
    with lock, Workers() as workers:
        _clear_predecessor(session)
        session.take_back()
        with _signal_pipe() as signal_fd:
            loop = Loop(session, workers, trainer, priority, signal_fd)
            signal.signal(signal.SIGTERM, lambda *_: loop.terminate())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            session.tell("ready", pid=os.getpid())
            complete = loop.run()
            _record_end(session, list(loop.losses()))
        session.tell("drained", complete=complete)
        logger.info("writer ends, %s", "all done" if complete else "unfinished")
        if not complete:
            # A thread may hang in the disk; the kernel ends it, and takes the locks back.
            logging.shutdown()
            os._exit(1)
    trainer.close()
    session.close()
    return 0


def _record_end(session: Session, losses: list[Loss]) -> None:
    """Leave word of what is lost beside the claim. In a thread: a disk that hangs may have caused
    the loss, and must not keep this process for ever."""

    def record() -> None:
        try:
            record_end(session.run_dir, session.generation, losses)
        except (OSError, PyengineError) as error:
            logger.error("the end cannot be recorded: %s", error)

    for loss in losses:
        logger.error("ring %s: up to %d rows are lost: %s", loss.ring, loss.rows, loss.why)
    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    thread.join(_RECORD_SECONDS)


def _clear_predecessor(session: Session) -> None:
    """Clear what a predecessor was making. Where the commit lock cannot be had within moments, it
    stays until a later claim: no name of it is used again."""
    try:
        with commit_lock(session.run_dir, session.generation, timeout=_CLEAR_SECONDS) as held:
            trash = janitor.sweep_predecessor(held)
        commit.empty_trash(trash)
    except RunBusyError as error:
        session.warn(f"what the writer before this one left stays for now: {error}")
    except RunError as error:
        # Each staged snapshot will fail by the same error, which the trainer then sees.
        logger.error("%s", error)


@contextlib.contextmanager
def _signal_pipe() -> Iterator[int]:
    """A descriptor that becomes readable with every signal."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    former = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(former)
        os.close(reader)
        os.close(writer)
