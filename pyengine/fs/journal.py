"""A door that writes down every change of the disk, with its bytes, in one order for all processes.

What a power cut may leave is worked out from such a journal. Each call that changes something is
made and noted under one lock, which all processes of the run share through the journal's file: the
order of the notes is the order of the calls. Armed by a fault plan: {"op": "changes", "action":
"journal", "file": "/path"}; a tool for tests, slow and never on by itself.

A note is a msgpack map: `op`, `pid`, and by operation

    create, mkdir      path, inode (device, number)
    write              inode, offset, data       truncate    inode, size
    sync               inode, of a file or a directory
    rename, link       path, target              unlink, rmdir   path
    symlink            path, target
    mark               whatever the caller of `mark` says
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from typing import Any

import msgpack

from pyengine.fs.door import FILE_MODE, Buffer, Door


class JournalDoor(Door):
    """Make every call and append a note of it to `file`, whose descriptor this object owns."""

    def __init__(self, file: str) -> None:
        self._fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()

    def mark(self, **facts: Any) -> None:
        """Note something that is no call, in its place among them."""
        with self._alone():
            self._note("mark", **facts)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _note(self, op: str, **facts: Any) -> None:
        Door.write(self, self._fd, msgpack.packb({"op": op, "pid": os.getpid(), **facts}))

    def open(
        self, path: str, flags: int, mode: int = FILE_MODE, *, dir_fd: int | None = None
    ) -> int:
        if not flags & os.O_CREAT:
            return super().open(path, flags, mode, dir_fd=dir_fd)
        with self._alone():
            place = _at(path, dir_fd)
            is_new = not os.path.lexists(place)
            fd = super().open(path, flags, mode, dir_fd=dir_fd)
            if is_new:
                self._note("create", path=place, inode=_inode(fd))
            return fd

    def write(self, fd: int, data: Buffer) -> None:
        with self._alone():
            super().write(fd, data)
            view = memoryview(data).cast("B")
            offset = os.lseek(fd, 0, os.SEEK_CUR) - len(view)
            self._note("write", inode=_inode(fd), offset=offset, data=bytes(view))

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        with self._alone():
            super().pwrite(fd, data, offset)
            self._note("write", inode=_inode(fd), offset=offset, data=bytes(data))

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        with self._alone():
            super().ftruncate(fd, size_bytes)
            self._note("truncate", inode=_inode(fd), size=size_bytes)

    def fallocate(self, fd: int, offset: int, size_bytes: int) -> None:
        with self._alone():
            super().fallocate(fd, offset, size_bytes)
            self._note("truncate", inode=_inode(fd), size=os.fstat(fd).st_size)

    def clone(self, source_fd: int, target_fd: int) -> None:
        with self._alone():
            super().clone(source_fd, target_fd)
            data = os.pread(source_fd, os.fstat(source_fd).st_size, 0)
            self._note("write", inode=_inode(target_fd), offset=0, data=data)

    def fsync(self, fd: int) -> None:
        with self._alone():
            super().fsync(fd)
            self._note("sync", inode=_inode(fd))

    def fdatasync(self, fd: int) -> None:
        with self._alone():
            super().fdatasync(fd)
            self._note("sync", inode=_inode(fd))

    def rename(self, source: str, target: str) -> None:
        with self._alone():
            super().rename(source, target)
            self._note("rename", path=os.path.abspath(source), target=os.path.abspath(target))

    def link(self, source: str, target: str) -> None:
        with self._alone():
            super().link(source, target)
            self._note("link", path=os.path.abspath(source), target=os.path.abspath(target))

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        with self._alone():
            super().unlink(path, dir_fd=dir_fd)
            self._note("unlink", path=_at(path, dir_fd))

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        with self._alone():
            super().mkdir(path, mode)
            status = os.stat(path)
            inode = [status.st_dev, status.st_ino]
            self._note("mkdir", path=os.path.abspath(path), inode=inode)

    def rmdir(self, path: str, *, dir_fd: int | None = None) -> None:
        with self._alone():
            super().rmdir(path, dir_fd=dir_fd)
            self._note("rmdir", path=_at(path, dir_fd))

    def symlink(self, target: str, path: str) -> None:
        with self._alone():
            super().symlink(target, path)
            self._note("symlink", path=os.path.abspath(path), target=target)


def _inode(fd: int) -> list[int]:
    status = os.fstat(fd)
    return [status.st_dev, status.st_ino]


def _at(path: str, dir_fd: int | None) -> str:
    if dir_fd is None:
        return os.path.abspath(path)
    return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
