"""Durable writes: new files in one pass, atomic replacement, links that fall back to copies.

Nothing here writes into a file that already existed. A file whose write or fsync failed is lost:
it is unlinked and the error raised; whoever still has the bytes writes them again under a new name
(after a failed fsync the kernel has dropped the dirty pages, and a second fsync would lie).

Large files go out by O_DIRECT in chunks of 8 MiB, each hashed while it is in the cache. Memory that
is not aligned passes through a bounce buffer, and a tail shorter than a page is written buffered.
Where the file system refuses O_DIRECT everything is buffered, flushed every 64 MiB so that a burst
of dirty pages never stalls the machine.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import xxhash

from pyengine.config import PAGE_BYTES
from pyengine.errors import NoSpaceError
from pyengine.fs import door
from pyengine.fs.door import Buffer
from pyengine.fs.limits import explain

CHUNK_BYTES = 8 * 1024 * 1024
"""Size of one write, and of what is hashed at a time."""

_BYPASS_BYTES = 16 * PAGE_BYTES
_FLUSH_BYTES = 64 * 1024 * 1024
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
_CANNOT_CLONE = (
    errno.EXDEV,
    errno.EPERM,
    errno.ENOTSUP,
    errno.ENOSYS,
    errno.ENOTTY,
    errno.EINVAL,
    errno.EBADF,
    errno.ETXTBSY,
)


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is durable: its size and, where it was asked for, the XXH3-64 of all bytes."""

    size_bytes: int
    xxh3_64: int


def write_file(
    directory: str | int,
    name: str,
    pieces: Sequence[Buffer],
    *,
    direct: bool = False,
    hashed: bool = True,
) -> Written:
    """Write a new file from `pieces`, one after the other, and fsync it (not its directory).

    `directory` is a path or an open descriptor. The file must not exist (FileExistsError). With
    `direct` the bytes bypass the page cache where memory, file and file system allow. On any
    error the file is removed again. Raises NoSpaceError, OSError.
    """
    dir_fd = directory if isinstance(directory, int) else None
    path = name if isinstance(directory, int) else os.path.join(directory, name)
    size_bytes = sum(memoryview(piece).nbytes for piece in pieces)
    with _no_space_is_typed(directory, size_bytes):
        fd = _open_new(path, dir_fd, direct=direct and size_bytes >= PAGE_BYTES)
        try:
            try:
                digest = _write_pieces(fd, pieces, hashed=hashed)
                door.active.fsync(fd)
            finally:
                door.active.close(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                door.active.unlink(path, dir_fd=dir_fd)
            raise
    return Written(size_bytes, digest)


def _open_new(path: str, dir_fd: int | None, *, direct: bool) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    if direct:
        try:
            return door.active.open(path, flags | os.O_DIRECT, dir_fd=dir_fd)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # The file may have been made before the flag was refused.
            with contextlib.suppress(FileNotFoundError):
                door.active.unlink(path, dir_fd=dir_fd)
    return door.active.open(path, flags, dir_fd=dir_fd)


class _Stream:
    """The end of the file being written: direct while the kernel accepts it, buffered after."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unflushed = 0
        self.offset = 0
        self.is_direct = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)

    def put(self, view: memoryview) -> bool:
        """Write `view`. False: refused for its memory or size alignment, nothing was written."""
        try:
            door.active.pwrite(self._fd, view, self.offset)
        except OSError as error:
            if error.errno == errno.EINVAL and self.is_direct:
                return False
            raise
        self.offset += len(view)
        if not self.is_direct:
            self._unflushed += len(view)
            if self._unflushed >= _FLUSH_BYTES:
                door.active.fdatasync(self._fd)
                self._unflushed = 0
        return True

    def go_buffered(self) -> None:
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self.is_direct = False


def _write_pieces(fd: int, pieces: Sequence[Buffer], *, hashed: bool) -> int:
    stream = _Stream(fd)
    digest = xxhash.xxh3_64()
    with contextlib.ExitStack() as stack:
        bounce: _Bounce | None = None
        for chunk in _chunks(pieces):
            if hashed:
                digest.update(chunk)
            if stream.is_direct:
                bounce = bounce or stack.enter_context(contextlib.closing(_Bounce(stream)))
                bounce.put(chunk)
            else:
                stream.put(chunk)
        if bounce is not None:
            bounce.flush_tail()
    return int(digest.intdigest()) if hashed else 0


def _chunks(pieces: Sequence[Buffer]) -> Iterator[memoryview]:
    for piece in pieces:
        view = memoryview(piece).cast("B")
        for start in range(0, len(view), CHUNK_BYTES):
            yield view[start : start + CHUNK_BYTES]


class _Bounce:
    """Page-aligned memory in front of a direct stream; aligned chunks go past it.

    Once the kernel has refused the memory of one chunk, the rest of the file goes through here.
    """

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._memory: mmap.mmap | None = None
        self._filled = 0
        self._refused = False

    def put(self, chunk: memoryview) -> None:
        if self._filled % PAGE_BYTES == 0 and len(chunk) >= _BYPASS_BYTES and not self._refused:
            self._flush()
            whole = len(chunk) - len(chunk) % PAGE_BYTES
            if self._stream.put(chunk[:whole]):
                chunk = chunk[whole:]
            else:
                self._refused = True
        while len(chunk):
            memory = self._buffer()
            taken = min(len(chunk), CHUNK_BYTES - self._filled)
            memory[self._filled : self._filled + taken] = chunk[:taken]
            self._filled += taken
            chunk = chunk[taken:]
            if self._filled == CHUNK_BYTES:
                self._flush()

    def flush_tail(self) -> None:
        """Write what is left; a tail shorter than a page cannot be direct."""
        tail = self._filled % PAGE_BYTES
        memory = self._buffer() if self._filled else None
        whole = self._filled - tail
        if memory is not None and whole:
            self._write(memoryview(memory)[:whole])
        if memory is not None and tail:
            self._stream.go_buffered()
            self._write(memoryview(memory)[whole : whole + tail])
        self._filled = 0

    def close(self) -> None:
        if self._memory is not None:
            with contextlib.suppress(BufferError):
                self._memory.close()

    def _flush(self) -> None:
        if self._filled:
            self._write(memoryview(self._buffer())[: self._filled])
            self._filled = 0

    def _write(self, view: memoryview) -> None:
        if not self._stream.put(view):
            self._stream.go_buffered()
            self._stream.put(view)

    def _buffer(self) -> mmap.mmap:
        if self._memory is None:
            self._memory = mmap.mmap(-1, CHUNK_BYTES)
        return self._memory


@contextlib.contextmanager
def _no_space_is_typed(directory: str | int, needed_bytes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise OSError(errno.EFBIG, explain(error), _shown(directory)) from error
        if error.errno not in _NO_SPACE:
            raise
        free_bytes = 0
        with contextlib.suppress(OSError):
            room = os.statvfs(directory)
            free_bytes = room.f_bavail * room.f_frsize
        raise NoSpaceError(
            f"{_shown(directory)}: {needed_bytes} bytes do not fit: {free_bytes} bytes are free "
            f"({os.strerror(error.errno)})",
            needed_bytes=needed_bytes,
            free_bytes=free_bytes,
        ) from error


def _shown(directory: str | int) -> str:
    return os.readlink(f"/proc/self/fd/{directory}") if isinstance(directory, int) else directory


def fsync_directory(path: str) -> None:
    """Make the names in a directory durable. Raises NoSpaceError, OSError."""
    fd = door.active.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _no_space_is_typed(path, PAGE_BYTES):
            door.active.fsync(fd)
    finally:
        door.active.close(fd)


def rename(source: str, target: str) -> None:
    """Rename a file or directory; not durable before its directory is. NoSpaceError, OSError."""
    with _no_space_is_typed(os.path.dirname(target), PAGE_BYTES):
        door.active.rename(source, target)


def make_new_directory(path: str) -> None:
    """Make a directory that must not exist; not durable. NoSpaceError, OSError.

    Others may read it as the umask says, and never write into it: whoever can replace files of a
    run decides what a restore puts into the process.
    """
    with _no_space_is_typed(os.path.dirname(path), PAGE_BYTES):
        door.active.mkdir(path, 0o775)


def make_directory(path: str) -> None:
    """Make `path` and its missing parents, each durable in its parent. It may exist."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    make_directory(parent)
    with contextlib.suppress(FileExistsError):
        make_new_directory(path)
    fsync_directory(parent)


def make_empty_file(path: str) -> None:
    """Make a file that must not exist; not durable. Raises FileExistsError, NoSpaceError, OSError.

    Others may never write to it, whatever the umask says.
    """
    with _no_space_is_typed(os.path.dirname(path), PAGE_BYTES):
        fd = door.active.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        door.active.close(fd)


def append_line(path: str, line: bytes) -> None:
    """Append a line, which ends with a line break, to a file that exists; durable on return.

    Behind a torn one, as a full disk or a crash leaves it, it starts on a line of its own. One
    writer at a time. Raises NoSpaceError, OSError; the line may then be torn.
    """
    with _no_space_is_typed(os.path.dirname(path), len(line)):
        fd = door.active.open(path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK)
        try:
            last = bytearray(b"\n")
            size_bytes = os.fstat(fd).st_size
            if size_bytes:
                door.active.pread_into(fd, [last], size_bytes - 1)
            door.active.write(fd, line if last == b"\n" else b"\n" + line)
            door.active.fsync(fd)
        finally:
            door.active.close(fd)


def replace_file(directory: str, name: str, data: Buffer, *, temporary: str) -> None:
    """Put `data` under `name` in one step: durable temporary, rename, fsync of the directory.

    A stale `temporary` of the same name is removed first. Raises NoSpaceError, OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        door.active.unlink(os.path.join(directory, temporary))
    write_file(directory, temporary, [data], hashed=False)
    rename(os.path.join(directory, temporary), os.path.join(directory, name))
    fsync_directory(directory)


def replace_symlink(directory: str, name: str, target: str, *, temporary: str) -> None:
    """Point the symbolic link `name` at `target` in one step; durable on return.

    Raises NoSpaceError, OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        door.active.unlink(os.path.join(directory, temporary))
    with _no_space_is_typed(directory, PAGE_BYTES):
        door.active.symlink(target, os.path.join(directory, temporary))
    rename(os.path.join(directory, temporary), os.path.join(directory, name))
    fsync_directory(directory)


def link_or_copy(source: str, target: str, *, temporary: str) -> str:
    """Give the bytes of `source` the second name `target`; return "link", "reflink" or "copy".

    Where the file system refuses hard links (another device, too many links, not permitted) the
    file is cloned, else copied, into `temporary` (a path beside `target`), fsynced and renamed.
    The directory is not fsynced. FileExistsError where `target` exists and links work;
    NoSpaceError, OSError.
    """
    try:
        with _no_space_is_typed(os.path.dirname(target), PAGE_BYTES):
            door.active.link(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
    else:
        return "link"
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    return _copy(source, target, temporary)


def _copy(source: str, target: str, temporary: str) -> str:
    source_fd = door.active.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        size_bytes = os.fstat(source_fd).st_size
        with _no_space_is_typed(os.path.dirname(target), size_bytes):
            fd = _open_new(temporary, None, direct=False)
            try:
                try:
                    how = _fill_from(source_fd, fd)
                    door.active.fsync(fd)
                finally:
                    door.active.close(fd)
                door.active.rename(temporary, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    door.active.unlink(temporary)
                raise
    finally:
        door.active.close(source_fd)
    return how


def _fill_from(source_fd: int, fd: int) -> str:
    try:
        door.active.clone(source_fd, fd)
    except OSError as error:
        if error.errno not in _CANNOT_CLONE:
            raise
    else:
        return "reflink"
    while data := door.active.read(source_fd, CHUNK_BYTES):
        door.active.write(fd, data)
    return "copy"


def remove_tree(path: str) -> None:
    """Delete a file, a link or a whole directory; symbolic links are removed, never followed.

    What is already gone is no error. Not atomic: rename to a trash name first.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            door.active.unlink(path)
            return
        with os.scandir(path) as entries:
            for entry in list(entries):
                remove_tree(entry.path)
        door.active.rmdir(path)
