"""One writer process as the trainer sees it: started, watched, ended.

It is a fresh interpreter, forked and exec'd, so that CUDA, threads and unguarded scripts of the
parent do not matter; it never imports the parent's main module. It gets the parent's import path
without the working directory, one socket, and the parent's pidfd. It lives in a session of its own:
no terminal signal reaches it, and it outlives a killed trainer to drain.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyengine
from pyengine.engine.critical import run_whole
from pyengine.shm.channel import Channel

# `sys` is built in, so that nothing is looked up before the path is the parent's.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from pyengine.writer.main import main; raise SystemExit(main(sys.argv[1:3]))"
)

_WORDS_BYTES = 65536


class WriterProcess:
    """A running writer and this side of its channel; owns both and the pidfd.

    `path` is the import path that it gets, see `import_path`.
    Nothing of it works in a forked child, where `disown` makes it forget the process.
    """

    def __init__(self, path: Sequence[str]) -> None:
        self._path = tuple(path)
        self._popen: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._pidfd = -1
        # What it says before it puts its own descriptors in order: why it could not start.
        self._words = -1
        try:
            run_whole(self._start)
        except BaseException:
            self.kill()
            raise

    @property
    def channel(self) -> Channel:
        """This side of the channel."""
        assert self._channel is not None
        return self._channel

    @property
    def pid(self) -> int:
        """The process id, for messages to people."""
        assert self._popen is not None
        return self._popen.pid

    @property
    def pidfd(self) -> int:
        """Readable when the process has ended."""
        return self._pidfd

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._popen is not None and not _is_readable(self._pidfd)

    def describe_end(self) -> str:
        """Return how the process ended, for messages to people."""
        code = self._popen.poll() if self._popen is not None else None
        if code is None:
            return "is gone"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        lines = os.pread(self._words, _WORDS_BYTES, 0).decode("utf-8", "replace").splitlines()
        said = f" ({lines[-1]})" if lines else ""
        return f"ended with exit status {code}{said}"

    def join(self, seconds: float) -> bool:
        """Wait for the end of the process; whether it came."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(max(0, int(seconds * 1000))))

    def end(self) -> None:
        """End the process by SIGKILL where it still runs; waits up to 5 s for it. Idempotent."""
        if self._popen is not None and self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self.join(5.0)

    def kill(self) -> None:
        """End the process, and let go of it. Idempotent."""
        self.end()
        self.release()

    def release(self) -> None:
        """Close the channel and let go; a process that still runs goes on alone. Idempotent."""
        if self._channel is not None:
            self._channel.close()
        if self._popen is not None:
            if self._popen.poll() is None:
                # It drains and ends by itself; Popen must not complain of it when collected.
                self._popen.returncode = 0
            self._popen = None
        self._close_fds()

    def disown(self) -> None:
        """In a forked child: forget the process, which is the parent's."""
        if self._popen is not None:
            self._popen.returncode = 0
            self._popen = None
        self._close_fds()

    def _close_fds(self) -> None:
        for fd in (self._pidfd, self._words):
            if fd >= 0:
                os.close(fd)
        self._pidfd = self._words = -1

    def _start(self) -> None:
        self._channel, theirs = Channel.pair()
        self._words = os.memfd_create("pyengine-writer-words", os.MFD_CLOEXEC)
        with theirs, _own_pidfd() as ours, _sigterm_blocked():
            fds = (theirs.fileno(), ours)
            self._popen = subprocess.Popen(
                [sys.executable, "-c", _BOOT, *map(str, fds), *self._path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                pass_fds=fds,
                start_new_session=True,
                cwd="/",
            )
            self._pidfd = os.pidfd_open(self._popen.pid)


@contextlib.contextmanager
def _own_pidfd() -> Iterator[int]:
    """A descriptor by which the writer knows this process, even where it is dead by then."""
    pidfd = os.pidfd_open(os.getpid())
    try:
        yield pidfd
    finally:
        os.close(pidfd)


@contextlib.contextmanager
def _sigterm_blocked() -> Iterator[None]:
    """Let a process that is started meanwhile begin with SIGTERM blocked: a signal to the whole
    group must not end it before it can drain. The mask is this thread's alone, and inherited."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def import_path() -> list[str]:
    """Return the parent's import path, absolute, with the package's own place in it.

    To be taken once, for all writers of an engine: the working directory, which relative entries
    depend on, may be another one later, or be gone.
    """
    root = str(Path(pyengine.__file__).resolve().parent.parent)
    path = [os.fspath(entry) for entry in sys.path if entry]
    try:
        here = os.getcwd()
    except FileNotFoundError:
        path = [entry for entry in path if os.path.isabs(entry)]
    else:
        path = [os.path.join(here, entry) for entry in path]
    return path if root in map(os.path.realpath, path) else [*path, root]


def _is_readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))
