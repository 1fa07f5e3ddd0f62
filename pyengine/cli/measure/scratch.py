"""A directory for as long as a measurement lasts, on a disk that the caller chose.

It is locked while its owner lives. What an owner left that was killed is removed by the next one in
the same place: by name and lock it is known to belong to nobody.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator

from pyengine.catalog import scan
from pyengine.catalog.generation import read_parties
from pyengine.engine.critical import run_whole
from pyengine.events import logger
from pyengine.fs import durable
from pyengine.fs.locks import OfdLock

_PREFIX = "pyengine-bench-"
_NAME = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}", re.ASCII)
_LOCK = "in-use"
_KILL_SECONDS = 5.0
_REMOVALS = 50
_PAUSE_SECONDS = 0.1


@contextlib.contextmanager
def scratch_directory(parent: str) -> Iterator[str]:
    """Make a directory in `parent`, and remove it at the end, whatever the end is.

    Run directories may be made in it; a writer that is still at work in one is ended first. Raises
    NoSpaceError, OSError.
    """
    _remove_dead(parent)
    path = os.path.join(parent, _PREFIX + secrets.token_hex(8))
    # Nobody takes it for a dead one's before it is locked: it gets its name last.
    made = f"{path}.new"
    try:
        durable.make_new_directory(made)
        durable.make_empty_file(os.path.join(made, _LOCK))
        with OfdLock.acquire(os.path.join(made, _LOCK), timeout=0):
            durable.rename(made, path)
            yield path
    finally:
        run_whole(lambda: _remove(made, path), even_if_interrupted=True)


def _remove_dead(parent: str) -> None:
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        if _NAME.fullmatch(name):
            with contextlib.suppress(OSError):
                lock = OfdLock.try_acquire(os.path.join(path, _LOCK))
                if lock is not None:
                    with lock:
                        logger.warning("%s: left by a bench that was killed; removed", path)
                        _remove(path)


def _remove(*paths: str) -> None:
    """Remove directories, though a process in one may still be ending. OSError where one stays."""
    for path in paths:
        for run_dir in _run_directories(path):
            _end_writers(run_dir)
        for attempt in range(_REMOVALS):
            try:
                durable.remove_tree(path)
                break
            except OSError:
                if attempt == _REMOVALS - 1:
                    raise
            time.sleep(_PAUSE_SECONDS)


def _run_directories(path: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _end_writers(run_dir: str) -> None:
    """End the writers of a run that nobody will ever restore: they need not drain."""
    for generation in range(1, scan.claimed_generation(run_dir) + 1):
        for role, party in read_parties(run_dir, generation):
            if role == "writer" and party.identity is not None:
                party.identity.kill(wait_seconds=_KILL_SECONDS)
