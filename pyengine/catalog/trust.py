"""Who may have written what a restore puts into the process: its own user, or root.

A checksum tells that bytes are those that were written, not by whom. A group that may write is
somebody's decision, everybody never is. Looked at before anything is read or moved: where the
directories are safe, nobody else can exchange what lies in them afterwards.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from pyengine.errors import RunDirectoryError
from pyengine.format import names


def check_directory(path: str) -> None:
    """Refuse a directory of a run in which others may put files under its names.

    RunDirectoryError: it is another user's (root's too: nothing could be written there), or can be
    written by everybody.
    """
    status = os.stat(path)
    _check_owner(path, status, (os.geteuid(),))
    _check_mode(path, status)


def check_snapshot(run_dir: str, name: str) -> None:
    """Refuse a snapshot of which a directory or file is another user's, neither ours nor root's, or
    can be written by everybody: RunDirectoryError that names it. Reads no file."""
    check_tree(os.path.join(run_dir, names.SNAPSHOTS, name))


def check_pool(run_dir: str, *, with_files: bool) -> None:
    """Refuse pools as `check_snapshot` does snapshots; their files too where rows that no snapshot
    holds are taken from them."""
    root = os.path.join(run_dir, names.SEGMENTS)
    for ring in os.listdir(root):
        path = os.path.join(root, ring)
        if with_files:
            check_tree(path)
        else:
            _check(path)


def check_tree(root: str) -> None:
    """Refuse a directory as `check_snapshot` does."""
    for path in _below(root):
        _check(path)


def _below(root: str) -> Iterator[str]:
    yield root
    for directory, directories, files in os.walk(root):
        yield from (os.path.join(directory, name) for name in (*directories, *files))


def _check(path: str) -> None:
    status = os.lstat(path)
    if not stat.S_ISLNK(status.st_mode):  # its mode says nothing, and no reader follows it
        _check_owner(path, status, (0, os.geteuid()))
        _check_mode(path, status)


def _check_owner(path: str, status: os.stat_result, trusted: tuple[int, ...]) -> None:
    if status.st_uid not in trusted:
        raise RunDirectoryError(
            f"{path} belongs to user {status.st_uid}, and this process runs as {os.geteuid()}: "
            "that user could replace files of the run. Choose a directory of your own, or chown it",
            path=path,
        )


def _check_mode(path: str, status: os.stat_result) -> None:
    if status.st_mode & stat.S_IWOTH:
        raise RunDirectoryError(
            f"{path} can be written by everybody (mode {stat.S_IMODE(status.st_mode):o}): anybody "
            f"could replace files of the run. chmod o-w {path}",
            path=path,
        )
