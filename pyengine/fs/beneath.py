"""Opening files that a directory claims to hold, without ever leaving it.

Each component is opened with O_NOFOLLOW relative to the one before, so that neither `..` nor a
symbolic link planted in a copied directory leads the reader elsewhere. What bears the name and is
no regular file (a link, FIFO, socket, device or directory) is damage, and nobody waits for it.
"""

from __future__ import annotations

import os
import stat

from pyengine.config import PAGE_BYTES
from pyengine.errors import DamageError, TruncatedFileError
from pyengine.fs import door

_ASK_BYTES = 128 * 1024


def open_beneath(directory: str, relative: str) -> int:
    """Open a regular file below `directory` for reading and return its descriptor.

    `relative` is a POSIX path of plain names. Raises DamageError where it leaves the directory,
    meets a symbolic link or is no regular file; FileNotFoundError and other OSErrors as they are.
    """
    parts = relative.split("/")
    shown = os.path.join(directory, relative)
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise DamageError(f"{shown}: the path leaves {directory}", path=shown)
    current = door.active.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            deeper = _open_at(current, part, os.O_RDONLY | os.O_DIRECTORY, shown)
            # In this order: after an interrupt in between nothing is closed twice.
            current, former = deeper, current
            door.active.close(former)
        return _open_regular(current, parts[-1], shown)[0]
    finally:
        door.active.close(current)


def open_regular(path: str) -> tuple[int, int]:
    """Open a regular file for reading whose directory is trusted; return (descriptor, size in
    bytes). Raises as `open_beneath` does.
    """
    return _open_regular(None, path, path)


def _open_regular(dir_fd: int | None, name: str, shown: str) -> tuple[int, int]:
    # O_NONBLOCK: a FIFO in place of the file must not make the reader wait.
    fd = _open_at(dir_fd, name, os.O_RDONLY | os.O_NONBLOCK, shown)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        door.active.close(fd)
        raise DamageError(f"{shown} is not a regular file", path=shown, offset=0)
    return fd, status.st_size


def _open_at(dir_fd: int | None, name: str, flags: int, shown: str) -> int:
    try:
        return door.active.open(name, flags | os.O_NOFOLLOW, dir_fd=dir_fd)
    except OSError as error:
        # A link is refused as ELOOP or ENOTDIR, a socket as ENXIO, a device as its driver likes.
        wanted = "a directory" if flags & os.O_DIRECTORY else "a regular file"
        if _is_other_kind(dir_fd, name, flags):
            raise DamageError(
                f"{shown}: {os.path.basename(name)} is not {wanted}", path=shown, offset=0
            ) from error
        raise OSError(error.errno, os.strerror(error.errno or 0), shown) from error


def _is_other_kind(dir_fd: int | None, name: str, flags: int) -> bool:
    """Whether what bears the name is not what `flags` open."""
    try:
        mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    except OSError:
        return False
    return not (stat.S_ISDIR(mode) if flags & os.O_DIRECTORY else stat.S_ISREG(mode))


def read_beneath(
    directory: str, relative: str, *, limit_bytes: int, past_cache: bool = False
) -> bytes:
    """Read a whole regular file below `directory`; with `past_cache` from the disk (`drop_cache`).

    Raises DamageError where it is larger than `limit_bytes`, and as `open_beneath` does.
    """
    shown = os.path.join(directory, relative)
    fd = open_beneath(directory, relative)
    try:
        if past_cache:
            drop_cache(fd)
        size_bytes = os.fstat(fd).st_size
        if size_bytes > limit_bytes:
            raise DamageError(
                f"{shown}: {size_bytes} bytes are more than the {limit_bytes} such a file may have",
                path=shown,
                expected=limit_bytes,
                got=size_bytes,
            )
        parts = []
        while data := door.active.read(fd, 1 << 20):
            parts.append(data)
        return b"".join(parts)
    finally:
        door.active.close(fd)


def drop_cache(fd: int) -> None:
    """Have the next read of the file come from the disk, where the kernel lets go of its pages.

    It keeps those that are dirty or mapped, and all of a file system in memory.
    """
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def ask_ahead(fd: int, offset: int, length: int) -> None:
    """Have a range of the file read soon, without waiting for it. A hint: it cannot fail.

    In slices: one call reads no more than the device takes at once, the rest would come page by
    page.
    """
    begin, end = offset - offset % PAGE_BYTES, offset + length
    for at in range(begin, end, _ASK_BYTES):
        os.posix_fadvise(fd, at, min(_ASK_BYTES, end - at), os.POSIX_FADV_WILLNEED)


def check_size(path: str, got: int, expected: int) -> None:
    """Raise TruncatedFileError or DamageError where a file has not the size that is on record."""
    if got != expected:
        kind = TruncatedFileError if got < expected else DamageError
        raise kind(
            f"{path}: {got} bytes, the manifest says {expected}",
            path=path,
            offset=min(got, expected),
            expected=expected,
            got=got,
        )
