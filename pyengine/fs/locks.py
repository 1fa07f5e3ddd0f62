"""Open-file-description locks on single bytes of a file.

Life is proved by such a lock: the kernel frees it when the last descriptor goes, SIGKILL included.
Record locks would be lost when any other code in the process opens and closes the file, flock
would be kept by forked children. These are held by our own descriptor alone, and a forked child
closes its copy (pyengine.fs.forking), so that it cannot outlive its owner.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
import weakref

from pyengine.fs import door, forking, process

_FLOCK = struct.Struct("hhqqi4x")
_POLL_SECONDS = 0.01
_BUSY = (errno.EAGAIN, errno.EACCES)
_held: dict[int, weakref.ref[OfdLock]] = {}
"""The locks that this process holds, by descriptor."""


def _request(fd: int, command: int, kind: int, byte: int) -> int:
    """Run one lock command on one byte; return the kind of lock the kernel answered with."""
    answer = fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    return int(_FLOCK.unpack(answer)[0])


class OfdLock:
    """A held lock on one byte of a file; a context manager that releases it.

    Made by `try_acquire` or `acquire`. Belongs to the process that made it: in a forked child the
    descriptor is closed and `release` does nothing. Threads may share it.
    """

    def __init__(self, fd: int, path: str, byte: int) -> None:
        self.path = path
        self.byte = byte
        self._fd = fd
        self._pid = os.getpid()
        _held[fd] = weakref.ref(self)
        forking.register_for_child(self)

    @classmethod
    def try_acquire(cls, path: str, byte: int = 0, *, shared: bool = False) -> OfdLock | None:
        """Take the lock at once, or return None while somebody else has it.

        The file must exist. An exclusive lock needs write permission; a shared one only reads.
        Raises OSError where the file cannot be opened (FileNotFoundError: also when it was
        replaced while the lock was being taken).
        """
        # Not blocking: a FIFO in the place of a lock would hold us for ever.
        fd = door.active.open(path, (os.O_RDONLY if shared else os.O_RDWR) | os.O_NONBLOCK)
        try:
            _request(fd, fcntl.F_OFD_SETLK, fcntl.F_RDLCK if shared else fcntl.F_WRLCK, byte)
            if not os.path.samestat(os.fstat(fd), os.stat(path)):
                raise FileNotFoundError(errno.ENOENT, "replaced while it was locked", path)
        except BaseException as error:
            door.active.close(fd)
            if isinstance(error, OSError) and error.errno in _BUSY:
                return None
            raise
        return cls(fd, path, byte)

    @classmethod
    def acquire(cls, path: str, byte: int = 0, *, timeout: float | None = None) -> OfdLock:
        """Wait for the exclusive lock; TimeoutError after `timeout` seconds (None: for ever).

        Polls, because the kernel's waiting call knows no time limit; signals are served meanwhile.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            lock = cls.try_acquire(path, byte)
            if lock is not None:
                return lock
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{path}: byte {byte} is still locked after {timeout} s")
            time.sleep(_POLL_SECONDS)

    @classmethod
    def adopt(cls, fd: int, path: str, byte: int) -> OfdLock | None:
        """Take over a lock through a duplicate of its descriptor, which is closed in any case.

        The lock belongs to the open file, not to a process: whoever has a duplicate holds it. None
        where the descriptor does not hold it and somebody else does, or is not of this file.
        """
        try:
            _request(fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, byte)
            if not os.path.samestat(os.fstat(fd), os.stat(path)):
                raise FileNotFoundError(errno.ENOENT, "not the file of this descriptor", path)
        except OSError:
            door.active.close(fd)
            return None
        return cls(fd, path, byte)

    @property
    def fd(self) -> int:
        """The descriptor, close-on-exec, for a message that hands a duplicate over."""
        return self._fd

    def hand_over(self) -> None:
        """Let go without unlocking: the lock lives on with duplicates of the descriptor, if any."""
        fd = self._forget()
        if fd >= 0:
            door.active.close(fd)

    @property
    def is_held(self) -> bool:
        """Whether this object still holds the lock."""
        return self._fd >= 0

    def release(self) -> None:
        """Let the lock go. Idempotent."""
        fd = self._forget()
        if fd < 0:
            return
        if self._pid == os.getpid():
            # Unlock before closing: a child between fork and exec still has the description.
            with contextlib.suppress(OSError):
                _request(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, self.byte)
        door.active.close(fd)

    @property
    def is_in_place(self) -> bool:
        """Whether the file that is locked still bears its name."""
        try:
            return self._is_on(os.stat(self.path))
        except OSError:
            return False

    def _is_on(self, file: os.stat_result) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), file)
        except OSError:  # released meanwhile
            return False

    def _forget(self) -> int:
        """Return the descriptor, which is this object's no more; -1: it was not already."""
        fd, self._fd = self._fd, -1
        _held.pop(fd, None)
        return fd

    def _after_fork_in_child(self) -> None:
        fd = self._forget()
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> OfdLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        # At the interpreter's end anything that release needs may be gone already; the kernel frees
        # the lock in any case.
        with contextlib.suppress(Exception):
            self.release()


def is_replaced(path: str) -> bool:
    """Return whether this process has locked a file under `path`, and another one is there now.

    Its locks then protect nothing any more. False where no file is there, or none was locked.
    """
    held = [reference() for reference in list(_held.values())]
    locks = [lock for lock in held if lock is not None and lock.path == path]
    try:
        return bool(locks) and not any(lock._is_on(os.stat(path)) for lock in locks)
    except FileNotFoundError:
        return False


def is_locked(path: str, byte: int = 0) -> bool:
    """Return whether anybody, this process included, holds a lock on the byte. Takes nothing.

    False where the file does not exist, or is a socket, which nobody can lock.
    """
    try:
        fd = door.active.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENXIO):
            raise
        return False
    try:
        return _request(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, byte) != fcntl.F_UNLCK
    finally:
        door.active.close(fd)


def holders(path: str, byte: int = 0) -> list[int]:
    """Return the ids of the processes that hold a lock on the byte, as far as /proc shows them.

    Looks at the descriptors of all processes that may be looked at. A descriptor that was passed on
    makes several; none where the file is not there, or the kernel tells of no locks.
    """
    try:
        file = os.stat(path)
    except OSError:
        return []
    return [pid for pid in process.all_pids() if _has_lock(pid, file, byte)]


def _has_lock(pid: int, file: os.stat_result, byte: int) -> bool:
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), file):
                    with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as info:
                        if any(_is_on_byte(line, byte) for line in info):
                            return True
    return False


def _is_on_byte(line: str, byte: int) -> bool:
    """Whether a line of fdinfo tells of a lock on the byte:
    "lock:  1: OFDLCK  ADVISORY  WRITE -1 00:1b:1384703 0 0"."""
    words = line.split()
    if len(words) != 9 or words[0] != "lock:" or words[2] != "OFDLCK":
        return False
    return int(words[7]) <= byte and (words[8] == "EOF" or byte <= int(words[8]))
