"""A new run directory that is put together beside its place and appears there by one rename.

A call that is killed leaves nothing under the new name; what it left beside it is used up by the
next call for the same name, and by no other.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator

from pyengine.errors import RunBusyError, RunDirectoryError
from pyengine.events import logger
from pyengine.format import names
from pyengine.fs import durable, process
from pyengine.fs.locks import OfdLock


def check_new_run(target: str) -> None:
    """Raise RunDirectoryError unless `target` does not exist, or is an empty directory."""
    if os.path.lexists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise RunDirectoryError(
            f"{target} exists and is not empty: name a directory that a new run can have",
            path=target,
        )


@contextlib.contextmanager
def place_beside(
    target: str, *, clear: Callable[[str], None] = durable.remove_tree
) -> Iterator[str]:
    """Give an empty directory beside `target`, locked; an exception removes it.

    One that a killed call left behind is not locked any more, and is used up: `clear` removes each
    thing in it. RunBusyError: another process is at work there. NoSpaceError, OSError.
    """
    parent = os.path.dirname(target)
    durable.make_directory(parent)
    place = os.path.join(parent, names.temporary_name(0, os.path.basename(target)))
    with contextlib.suppress(FileExistsError):
        durable.make_new_directory(place)
    lock_path = os.path.join(place, names.LOCK)
    with contextlib.suppress(FileExistsError):
        durable.make_empty_file(lock_path)
    lock = OfdLock.try_acquire(lock_path)
    if lock is None:
        raise RunBusyError(
            f"{target} is being made by another process",
            path=target,
            pid=0,
            host=process.current().host,
            since="an unknown time",
        )
    with lock:
        for entry in os.listdir(place):
            if entry != names.LOCK:
                clear(os.path.join(place, entry))
        try:
            yield place
        except BaseException:
            durable.remove_tree(place)
            raise


def leave_place(place: str) -> None:
    """Remove what `place_beside` gave, once its work is done.

    Where that fails a warning says so: the work is done all the same, and the next call for the
    same name uses up what is left.
    """
    try:
        durable.remove_tree(place)
    except OSError as error:
        logger.warning("%s could not be removed, the next call will: %s", place, error)


def appear(place: str, target: str) -> None:
    """Give a whole run its name; durable on return. RunDirectoryError: somebody has the name."""
    durable.fsync_directory(place)
    try:
        durable.rename(place, target)  # takes the place of an empty directory
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise RunDirectoryError(f"{target} was made by somebody else", path=target) from error
    durable.fsync_directory(os.path.dirname(target))
