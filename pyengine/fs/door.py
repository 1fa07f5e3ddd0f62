"""The only door to the file system: every call that changes or reads files goes through `active`.

One object with one method per system call, so that a test (or a fault plan in the environment, see
pyengine.fs.faults) can put another one in its place: fail the third write, die before a rename,
record the order of calls. Unarmed, a call costs one Python frame.

Paths are absolute or relative to `dir_fd` where it is given. Errors are OSError, untouched;
pyengine.fs.durable translates the ones with a meaning of their own.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence

from pyengine import config

Buffer = bytes | bytearray | memoryview
"""What can be written without a copy: anything else with the buffer protocol, as a memoryview."""

FILE_MODE = 0o644
"""Of files that are made, less the umask: nobody else may ever write what a restore reads."""

_FICLONE = 0x40049409


class Door:
    """The system calls themselves. Safe to use from any thread; blocks as the calls do."""

    def open(
        self, path: str, flags: int, mode: int = FILE_MODE, *, dir_fd: int | None = None
    ) -> int:
        """Open `path` close-on-exec and return the descriptor, which the caller closes."""
        return os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=dir_fd)

    def read(self, fd: int, count: int) -> bytes:
        """Read at most `count` bytes at the descriptor's own offset."""
        return os.read(fd, count)

    def pread_into(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        """Read into `buffers` from `offset`; return the byte count, short at the file's end."""
        return os.preadv(fd, buffers, offset)

    def write(self, fd: int, data: Buffer) -> None:
        """Write all of `data` at the descriptor's own offset, in as many calls as it takes."""
        view = memoryview(data).cast("B")
        while len(view):
            view = view[os.write(fd, view) :]

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        """Write all of `data` at `offset`, in as many calls as it takes."""
        view = memoryview(data).cast("B")
        while len(view):
            done = os.pwrite(fd, view, offset)
            view = view[done:]
            offset += done

    def fsync(self, fd: int) -> None:
        """Make the file or directory durable. After an error its pages are lost: never repeat."""
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        """Make the file's data durable; as final as fsync when it fails."""
        os.fdatasync(fd)

    def close(self, fd: int) -> None:
        """Close the descriptor. It is gone even when this raises."""
        os.close(fd)

    def rename(self, source: str, target: str) -> None:
        """Rename within one file system, atomically, replacing `target`."""
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """Make the hard link `target`; a symbolic link at `source` is not followed."""
        os.link(source, target, follow_symlinks=False)

    def clone(self, source_fd: int, target_fd: int) -> None:
        """Make the file behind `target_fd` share all blocks of `source_fd`'s (reflink)."""
        fcntl.ioctl(target_fd, _FICLONE, source_fd)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        """Remove a name that is not a directory."""
        os.unlink(path, dir_fd=dir_fd)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        """Make one directory."""
        os.mkdir(path, mode)

    def rmdir(self, path: str, *, dir_fd: int | None = None) -> None:
        """Remove an empty directory."""
        os.rmdir(path, dir_fd=dir_fd)

    def symlink(self, target: str, path: str) -> None:
        """Make the symbolic link `path` that points to `target`."""
        os.symlink(target, path)

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        """Set the size of an open file."""
        os.ftruncate(fd, size_bytes)

    def fallocate(self, fd: int, offset: int, size_bytes: int) -> None:
        """Reserve blocks; ENOSPC now instead of a fatal signal later."""
        os.posix_fallocate(fd, offset, size_bytes)


def _first_door() -> Door:
    plan = config.fault_plan()
    if plan is None:
        return Door()
    from pyengine.fs import faults

    return faults.door_of(plan)


active: Door = _first_door()
"""The door in use. Callers write `door.active.fsync(fd)`, so that a test can replace it."""
