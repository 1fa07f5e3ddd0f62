"""Arenas: regions of POSIX shared memory that live by descriptors and mappings only.

An arena has no name from the moment it is made. Nothing can leak, no stranger can attach, and the
kernel frees the memory when the last process that holds the descriptor or a mapping is
gone. Where /dev/shm cannot hold the region a memfd serves the same way.

Arenas are sparse: `reserve` gives a range memory before it is touched, so that exhaustion is a
typed error instead of SIGBUS. A forked child inherits neither mapping nor descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
from collections.abc import Iterator

from pyengine._native.mapping import Mapping, reserve
from pyengine.config import MEMORY_MARGIN_BYTES
from pyengine.errors import ClosedError, ForkedProcessError, SharedMemoryError
from pyengine.fs.forking import register_for_child
from pyengine.fs.limits import explain
from pyengine.shm.headroom import SHM_DIRECTORY, headroom

_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG)


class Arena:
    """One shared-memory region, mapped into this process; a context manager.

    `create` makes it, `attach` maps one whose descriptor came from another process. The object owns
    `fd` and `mapping`; both go at `close()`, the memory itself when no process holds it any more.
    Views of it stay valid after `close()`: they keep the mapping alive. In a forked child the
    object is inert (ForkedProcessError).
    """

    def __init__(self, fd: int, size_bytes: int, *, label: str, is_memfd: bool) -> None:
        self._fd = fd
        self.size_bytes = size_bytes
        self.label = label
        self.is_memfd = is_memfd
        self._pid = os.getpid()
        try:
            status = os.fstat(fd)
            self._identity = f"{status.st_dev}:{status.st_ino}"
            self._mapping: Mapping | None = Mapping.shared(fd, size_bytes)
        except BaseException:
            os.close(fd)
            self._fd = -1
            raise
        register_for_child(self)

    @classmethod
    def create(cls, size_bytes: int, label: str) -> Arena:
        """Make a zeroed sparse region of `size_bytes`; `label` names it in error messages.

        Mode 0600, without a name. Reserves nothing. Raises SharedMemoryError.
        """
        try:
            fd, is_memfd = _open_unlinked(size_bytes, label)
            # More than the address space, or than the kernel is willing to map, fails here.
            return cls(fd, size_bytes, label=label, is_memfd=is_memfd)
        except OSError as error:
            free_bytes = headroom(with_shm=False)
            raise _no_room(label, size_bytes, free_bytes, explain(error)) from error

    @classmethod
    def attach(cls, fd: int, size_bytes: int, label: str = "arena") -> Arena:
        """Map a region through a descriptor of it, which the arena then owns.

        Raises SharedMemoryError where the region is smaller than `size_bytes`.
        """
        actual = os.fstat(fd).st_size
        if actual < size_bytes:
            os.close(fd)
            raise SharedMemoryError(
                f"{label}: {size_bytes} bytes were announced, the region has {actual}",
                needed_bytes=size_bytes,
                free_bytes=actual,
            )
        return cls(fd, size_bytes, label=label, is_memfd=False)

    @property
    def fd(self) -> int:
        """The descriptor, close-on-exec; send it to another process, never close it."""
        self._check()
        return self._fd

    @property
    def identity(self) -> str:
        """What tells this region from every other living one, the same in all processes."""
        return self._identity

    @property
    def taken_bytes(self) -> int:
        """Bytes of the region that have memory by now."""
        return os.fstat(self.fd).st_blocks * 512

    @property
    def mapping(self) -> Mapping:
        """The whole mapping: the buffer for control blocks and atomic words."""
        return self._check()

    def view(self, offset: int, length: int) -> memoryview:
        """Return writable bytes [offset, offset + length); ValueError where they leave it."""
        mapping = self._check()
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise ValueError(
                f"{self.label}: bytes {offset} to {offset + length} leave the {self.size_bytes}"
            )
        return memoryview(mapping)[offset : offset + length]

    def reserve(self, offset: int, length: int) -> None:
        """Give a range memory, so that touching it cannot fail. Blocks while pages are made;
        signals wait for the end.

        Raises SharedMemoryError naming the bytes needed and free; the arena is unchanged then.
        """
        self._check()
        room = headroom(with_shm=False)
        if room < length + MEMORY_MARGIN_BYTES:
            # Where /dev/shm is what is short, the kernel refuses; a cgroup's limit kills.
            raise _no_room(self.label, length, room, "the machine's or the container's memory ends")
        try:
            reserve(self._fd, offset, length)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            free_bytes = headroom(with_shm=not self.is_memfd)
            raise _no_room(self.label, length, free_bytes, explain(error)) from error

    def close(self) -> None:
        """Let go of descriptor and mapping. Idempotent; views in use keep the mapping alive."""
        mapping, self._mapping = self._mapping, None
        if mapping is None or self._pid != os.getpid():
            return
        with contextlib.suppress(BufferError):
            mapping.close()
        fd, self._fd = self._fd, -1
        os.close(fd)

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_mapping", None) is not None:
            self.close()

    def _check(self) -> Mapping:
        if self._pid != os.getpid():
            raise ForkedProcessError(f"{self.label}: shared memory is not inherited by a fork")
        if self._mapping is None:
            raise ClosedError(f"{self.label}: the arena was closed")
        return self._mapping

    def _after_fork_in_child(self) -> None:
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            mapping.disarm()
            fd, self._fd = self._fd, -1
            os.close(fd)


def _open_unlinked(size_bytes: int, label: str) -> tuple[int, bool]:
    """Return a descriptor of a fresh region without a name, and whether it is a memfd."""
    if size_bytes <= _shm_free_bytes():
        for make in (_open_nameless, _open_posix):
            with contextlib.suppress(OSError):
                return _sized(make(), size_bytes), False
    # /dev/shm is too small, not there, or not ours to write: a memfd needs no mount.
    fd = os.memfd_create(f"pyengine-{label}"[:200], os.MFD_CLOEXEC)
    return _sized(fd, size_bytes), True


def _open_nameless() -> int:
    """Make a file in /dev/shm that never has a name.

    shm_open and unlink leave an empty name behind where SIGKILL hits between them; a test that
    kills at random moments met it (2026-11-30).
    """
    return os.open(SHM_DIRECTORY, os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _open_posix() -> int:
    """The same by shm_open, for kernels and sandboxes without O_TMPFILE there."""
    import posix_ipc

    name = f"/pyengine-{secrets.token_hex(12)}"
    # The name lives between two calls only; it holds no byte yet, and no signal handler runs there.
    with _signals_blocked():
        try:
            memory = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600, size=0)
        except posix_ipc.Error as error:
            raise OSError(errno.EACCES, str(error)) from error
        posix_ipc.unlink_shared_memory(name)
    fd: int = memory.fd
    os.set_inheritable(fd, False)
    return fd


def _sized(fd: int, size_bytes: int) -> int:
    """Give the region its size; close it where that fails."""
    try:
        os.ftruncate(fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    # Asked for first: the call that blocks them may raise what a handler of an earlier one raises.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _shm_free_bytes() -> int:
    try:
        room = os.statvfs(SHM_DIRECTORY)
    except OSError:
        return 0
    return room.f_bavail * room.f_frsize


def _no_room(label: str, needed_bytes: int, free_bytes: int, cause: str) -> SharedMemoryError:
    return SharedMemoryError(
        f"{label}: {needed_bytes} bytes of shared memory are needed, {free_bytes} are free "
        f"({cause})",
        needed_bytes=needed_bytes,
        free_bytes=free_bytes,
    )
