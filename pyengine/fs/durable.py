"""Durable writes: new files in one pass, atomic replacement, links that fall back to copies.

Nothing here writes into a file that already existed. A file whose write or fsync failed is lost:
it is unlinked and the error raised; whoever still has the bytes writes them again under a new name
(after a failed fsync the kernel has dropped the dirty pages, and a second fsync would lie).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyengine.config import PAGE_BYTES
from pyengine.errors import NoSpaceError, RunDirectoryError
from pyengine.fs import door
from pyengine.fs.beneath import open_regular
from pyengine.fs.door import Buffer
from pyengine.fs.limits import explain
from pyengine.fs.stream import CHUNK_BYTES, write_pieces

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
"""What a file system says that gives no hard link here."""

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
    size_bytes = sum(memoryview(piece).nbytes for piece in pieces)
    is_direct = direct and size_bytes >= PAGE_BYTES
    with (
        no_space_is_typed(directory, size_bytes),
        _making(directory, name, direct=is_direct) as fd,
    ):
        digest = write_pieces(fd, pieces, hashed=hashed)
        door.active.fsync(fd)
    return Written(size_bytes, digest)


@contextlib.contextmanager
def _making(directory: str | int, name: str, *, direct: bool = False) -> Iterator[int]:
    """Make a new file and yield its descriptor, which is closed; an exception removes the file."""
    dir_fd = directory if isinstance(directory, int) else None
    path = name if isinstance(directory, int) else os.path.join(directory, name)
    fd = _open_new(path, dir_fd, direct=direct)
    try:
        try:
            yield fd
        finally:
            door.active.close(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            door.active.unlink(path, dir_fd=dir_fd)
        raise


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


@contextlib.contextmanager
def no_space_is_typed(directory: str | int, needed_bytes: int) -> Iterator[None]:
    """Raise NoSpaceError for a file system that is full while the block runs."""
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
        with no_space_is_typed(path, PAGE_BYTES):
            door.active.fsync(fd)
    finally:
        door.active.close(fd)


def fsync_file(path: str) -> None:
    """Make the bytes of a file durable that a library wrote. Raises NoSpaceError, OSError."""
    fd = door.active.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        with no_space_is_typed(os.path.dirname(path), 0):
            door.active.fsync(fd)
    finally:
        door.active.close(fd)


def rename(source: str, target: str) -> None:
    """Rename a file or directory; not durable before its directory is. NoSpaceError, OSError."""
    with no_space_is_typed(os.path.dirname(target), PAGE_BYTES):
        door.active.rename(source, target)


def make_new_directory(path: str) -> None:
    """Make a directory that must not exist; not durable. NoSpaceError, OSError.

    Others may read it as the umask says, and never write into it: whoever can replace files of a
    run decides what a restore puts into the process.
    """
    with no_space_is_typed(os.path.dirname(path), PAGE_BYTES):
        door.active.mkdir(path, 0o775)


def make_directory(path: str) -> None:
    """Make `path` and its missing parents, each durable in its parent. It may exist.

    Raises RunDirectoryError where something else is there; NoSpaceError, OSError.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    make_directory(parent)
    try:
        make_new_directory(path)
    except FileExistsError as error:
        if not os.path.isdir(path):  # else somebody has made it meanwhile
            raise RunDirectoryError(
                f"{path} is not a directory: put back what was there, or move it away, and it is "
                "made anew, without what it held",
                path=path,
            ) from error
    fsync_directory(parent)


def make_empty_file(path: str) -> None:
    """Make a file that must not exist; not durable. Raises FileExistsError, NoSpaceError, OSError.

    Others may never write to it, whatever the umask says.
    """
    with no_space_is_typed(os.path.dirname(path), PAGE_BYTES):
        fd = door.active.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        door.active.close(fd)


def append_line(path: str, line: bytes) -> None:
    """Append a line, which ends with a line break, to a file that exists; durable on return.

    Behind a torn one, as a full disk or a crash leaves it, it starts on a line of its own. One
    writer at a time. Raises NoSpaceError, OSError; the line may then be torn.
    """
    with no_space_is_typed(os.path.dirname(path), len(line)):
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
    with replacing_file(directory, name, data, temporary=temporary):
        pass


@contextlib.contextmanager
def replacing_file(
    directory: str, name: str, data: Buffer, *, temporary: str
) -> Iterator[list[str]]:
    """Do what `replace_file` does around a block without whose work `name` must not be seen.

    The block finds `temporary` in its place, not durable yet, and adds directories to the list that
    it is given: they are made durable after `temporary` (a journal that has its names has those of
    the block then) and before the rename. An exception removes `temporary`.
    """
    directories: list[str] = []
    size_bytes = memoryview(data).nbytes
    _remove_stale(directory, temporary)
    with contextlib.ExitStack() as made:
        with no_space_is_typed(directory, size_bytes):
            fd = made.enter_context(_making(directory, temporary))
            write_pieces(fd, [data], hashed=False)
        yield directories
        with no_space_is_typed(directory, size_bytes):
            door.active.fsync(fd)
        for path in dict.fromkeys(directories):
            fsync_directory(path)
        rename(os.path.join(directory, temporary), os.path.join(directory, name))
    fsync_directory(directory)


def fill_file(directory: str, name: str, data: Buffer, *, temporary: str) -> None:
    """Put `data` under `name` in one step, as `replace_file` does, by way of a `temporary` that may
    be there, empty, and is there at any moment until it becomes `name`.

    An exception leaves it: it says that `name` was never there. Raises NoSpaceError, OSError.
    """
    path = os.path.join(directory, temporary)
    with no_space_is_typed(directory, memoryview(data).nbytes):
        fd = door.active.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)
        try:
            write_pieces(fd, [data], hashed=False)
            door.active.fsync(fd)
        finally:
            door.active.close(fd)
    rename(path, os.path.join(directory, name))
    fsync_directory(directory)


def place_file(directory: str, name: str, data: Buffer, *, temporary: str) -> None:
    """Put `data` under `name` in one step, for every process and for no power cut.

    Waits for no disk. After a power cut `name` may be absent, as it was, empty or torn: for what a
    reader recognises as such and can do without. Raises NoSpaceError, OSError.
    """
    _remove_stale(directory, temporary)
    with no_space_is_typed(directory, memoryview(data).nbytes):
        with _making(directory, temporary) as fd:
            write_pieces(fd, [data], hashed=False)
        rename(os.path.join(directory, temporary), os.path.join(directory, name))


def _remove_stale(directory: str, temporary: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        door.active.unlink(os.path.join(directory, temporary))


def replace_symlink(directory: str, name: str, target: str, *, temporary: str) -> None:
    """Point the symbolic link `name` at `target` in one step; durable on return.

    Raises NoSpaceError, OSError.
    """
    _remove_stale(directory, temporary)
    with no_space_is_typed(directory, PAGE_BYTES):
        door.active.symlink(target, os.path.join(directory, temporary))
    rename(os.path.join(directory, temporary), os.path.join(directory, name))
    fsync_directory(directory)


def link_or_copy(source: str, target: str, *, temporary: str) -> str:
    """Give the bytes of `source` the second name `target`; return "link", "reflink" or "copy".

    Where the file system refuses hard links (another device, too many links, not permitted) the
    file is cloned, else copied, into `temporary` (a path beside `target`), fsynced and renamed.
    The directory is not fsynced. FileExistsError where `target` exists and links work; DamageError
    where `source` is to be copied and no regular file; NoSpaceError, OSError.
    """
    try:
        with no_space_is_typed(os.path.dirname(target), PAGE_BYTES):
            door.active.link(source, target)
    except OSError as error:
        if error.errno not in CANNOT_LINK:
            raise
    else:
        return "link"
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    return _copy(source, target, temporary)


def _copy(source: str, target: str, temporary: str) -> str:
    source_fd, _ = open_regular(source)
    try:
        return copy_open(source_fd, target, temporary=temporary)
    finally:
        door.active.close(source_fd)


def copy_open(source_fd: int, target: str, *, temporary: str) -> str:
    """Put the bytes of an open file, from its offset on, under the name `target`, as `link_or_copy`
    does where links are refused; return "reflink" or "copy"."""
    size_bytes = os.fstat(source_fd).st_size
    with no_space_is_typed(os.path.dirname(target), size_bytes):
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
