"""A file of any size that appears whole under its name, or not at all.

It is written beside its place under a temporary name, fsynced, and given its name last. A killed
call leaves the temporary, which is not locked any more and is used up by the next call.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Iterator

from pyengine.fs import door, durable
from pyengine.fs.door import Buffer
from pyengine.fs.locks import OfdLock

_FLUSH_BYTES = 64 * 1024 * 1024


class _Output(io.RawIOBase):
    """A descriptor as a file that can be written and sought. What is written goes to the disk bit
    by bit, so that no burst of dirty pages stalls the machine. The descriptor is not closed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._offset = self._unflushed = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {
            os.SEEK_SET: 0,
            os.SEEK_CUR: self._offset,
            os.SEEK_END: os.fstat(self._fd).st_size,
        }[whence]
        self._offset = base + offset
        return self._offset

    def write(self, data: Buffer) -> int:  # type: ignore[override]
        view = memoryview(data).cast("B")
        door.active.pwrite(self._fd, view, self._offset)
        self._offset += len(view)
        self._unflushed += len(view)
        if self._unflushed >= _FLUSH_BYTES:
            door.active.fdatasync(self._fd)
            self._unflushed = 0
        return len(view)


@contextlib.contextmanager
def new_file(path: str, *, temporary: str, replaces: bool) -> Iterator[io.RawIOBase]:
    """Give a file to write to, which gets the name `path` when the block ends; durable then.

    `temporary` is a name beside it. With `replaces` it takes the place of a file that is there;
    else FileExistsError, before the block where that is known, after it where one came meanwhile.
    An exception removes the temporary. BlockingIOError: another process is writing it.
    NoSpaceError, OSError.
    """
    directory = os.path.dirname(path)
    beside = os.path.join(directory, temporary)
    _check_place(path, replaces)
    with durable.no_space_is_typed(directory, 0):
        with contextlib.suppress(FileExistsError):
            durable.make_empty_file(beside)
        lock = OfdLock.try_acquire(beside)
        if lock is None:
            raise BlockingIOError(errno.EAGAIN, "another process is writing it", path)
        with lock:
            if not os.path.samestat(os.fstat(lock.fd), os.lstat(beside)):
                raise OSError(errno.ELOOP, "a symbolic link is in the temporary's place", beside)
            try:
                door.active.ftruncate(lock.fd, 0)
                yield _Output(lock.fd)
                door.active.fsync(lock.fd)
                _give_name(beside, path, replaces)
            except BaseException:
                with contextlib.suppress(OSError):
                    door.active.unlink(beside)
                raise
        durable.fsync_directory(directory)


def _check_place(path: str, replaces: bool) -> None:
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not replaces and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def _give_name(beside: str, path: str, replaces: bool) -> None:
    if not replaces:
        try:
            door.active.link(beside, path)
        except OSError as error:
            if error.errno not in durable.CANNOT_LINK:
                raise
            _check_place(path, replaces)
        else:
            door.active.unlink(beside)
            return
    durable.rename(beside, path)
