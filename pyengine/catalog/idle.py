"""Working on a run that nobody runs: the commit lock of a run without owner and writer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from pyengine.catalog import scan
from pyengine.catalog.commit_lock import CommitLock
from pyengine.catalog.generation import generation_path, read_party
from pyengine.catalog.keepers import lock_busy
from pyengine.config import COMMIT_LOCK_SECONDS
from pyengine.errors import RunBusyError, RunDirectoryError
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
    if is_locked(path, names.OWNER_BYTE):
        raise _busy(run_dir, generation, "owner", "it is in use by")
    if is_locked(path, names.WRITER_BYTE):
        raise _busy(run_dir, generation, "writer", "it is still being drained by the writer,")


def _busy(run_dir: str, generation: int, role: str, what: str) -> RunBusyError:
    party = read_party(run_dir, generation, role)
    pid = party.identity.pid if party.identity else 0
    host = party.identity.host if party.identity else "an unknown host"
    return RunBusyError(
        f"{run_dir} is a living run: {what} pid {pid} on {host}, since {party.since} (generation "
        f"{generation}); wait for its end",
        path=run_dir,
        pid=pid,
        host=host,
        since=party.since,
    )
