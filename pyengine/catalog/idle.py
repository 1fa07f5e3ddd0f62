"""Working on a run that nobody runs: the commit lock of a run without owner and writer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from pyengine.catalog import scan
from pyengine.catalog.commit_lock import CommitLock
from pyengine.catalog.generation import generation_path
from pyengine.catalog.keepers import busy, lock_busy, party_keeper
from pyengine.config import COMMIT_LOCK_SECONDS
from pyengine.errors import RunDirectoryError
from pyengine.format import names
from pyengine.fs.locks import OfdLock, is_locked


@contextlib.contextmanager
def idle_lock(run_dir: str, *, timeout: float = COMMIT_LOCK_SECONDS) -> Iterator[CommitLock]:
    """Hold the commit lock of a run whose owners and writers are gone, while the block runs.

    Every generation that was claimed is dead then, and none can be claimed before the block ends.
    Waits up to `timeout` seconds for the lock. Raises RunBusyError (an owner lives, of the newest
    claim or of one that was taken over; a writer drains; somebody keeps the lock),
    RunDirectoryError (not a run), OSError.
    """
    path = os.path.join(run_dir, names.LOCK)
    try:
        lock = OfdLock.acquire(path, timeout=timeout)
    except FileNotFoundError as error:
        what = "is no run directory" if os.path.exists(run_dir) else "does not exist"
        raise RunDirectoryError(f"{run_dir} {what}", path=run_dir) from error
    except TimeoutError as error:
        raise lock_busy(run_dir) from error
    with lock:
        for generation in scan.claimed_generations(run_dir):
            _check_dead(run_dir, generation)
        yield CommitLock(run_dir, scan.claimed_generation(run_dir), lock)


def _check_dead(run_dir: str, generation: int) -> None:
    path = generation_path(run_dir, generation)
    for role, byte, what in _LIVING:
        if is_locked(path, byte):
            keeper = party_keeper(run_dir, generation, role)
            raise busy(run_dir, f"is a living run: {what}", keeper, "wait for its end")


_LIVING = (
    ("owner", names.OWNER_BYTE, "it is in use by"),
    ("writer", names.WRITER_BYTE, "it is still being drained by the writer,"),
)
