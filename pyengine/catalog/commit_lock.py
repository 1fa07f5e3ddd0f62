"""The commit lock, and what may only be done under it.

Whoever renames or unlinks a name that others rely on (snapshots, pool, quarantine, generations)
holds byte 0 of `lock` and has seen, after taking it, that its generation is still the newest. The
only way to get at those operations is a `CommitLock`, and the only way to get one is to pass that
check. A writer that was frozen and wakes up in a newer generation is turned away here, and so is
one whose run was moved or removed, so that another run, with generations of its own, has its path.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from pyengine.catalog.generation import check_not_replaced
from pyengine.catalog.keepers import lock_busy
from pyengine.catalog.scan import claimed_generation
from pyengine.config import COMMIT_LOCK_SECONDS
from pyengine.errors import RunDirectoryError, StaleGenerationError
from pyengine.format import names
from pyengine.format.sealed import record_bytes
from pyengine.fs import door, durable
from pyengine.fs.locks import OfdLock


class CommitLock:
    """The held commit lock of a run, checked against `generation`. Made by `commit_lock`.

    Its methods may be used until the block ends; none of them fsyncs the directory, except where
    it says so. They raise NoSpaceError, OSError, and RunDirectoryError where the run was moved or
    removed since.
    """

    def __init__(self, run_dir: str, generation: int, lock: OfdLock) -> None:
        self.run_dir = run_dir
        self.generation = generation
        self._lock = lock

    def _require(self) -> None:
        if not self._lock.is_held:
            raise RuntimeError("the commit lock was released")
        if not self._lock.is_in_place:
            raise RunDirectoryError(
                f"{self.run_dir} was moved or removed during a commit: what has its path now stays "
                "as it is",
                path=self.run_dir,
            )

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory of the run."""
        self._require()
        durable.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file of the run; one that is gone is no error."""
        self._require()
        with contextlib.suppress(FileNotFoundError):
            door.active.unlink(path)

    def link_or_copy(self, source: str, target: str) -> str:
        """Give a file a second name; return "link", "reflink" or "copy" (see fs.durable)."""
        self._require()
        directory, name = os.path.split(target)
        temporary = os.path.join(directory, names.temporary_name(self.generation, name))
        return durable.link_or_copy(source, target, temporary=temporary)

    def trash(self, path: str) -> str:
        """Rename something out of the way, in its directory; return the path to delete later."""
        self._require()
        directory, name = os.path.split(path)
        unique = f"{name.removeprefix('.')}-{secrets.token_hex(4)}"
        target = os.path.join(directory, names.trash_name(self.generation, unique))
        durable.rename(path, target)
        return target

    def quarantine(self, snapshot: str, record: Mapping[str, Any]) -> str:
        """Move a snapshot into `quarantine/`, with a record (JSON) of why; durable on return.

        Returns the new path. A name that is taken there gets a number: nothing is replaced.
        """
        self._require()
        parents = [os.path.join(self.run_dir, name) for name in (names.SNAPSHOTS, names.QUARANTINE)]
        durable.make_directory(parents[1])
        name = self._free_quarantine_name(snapshot)
        # The record first: what lies there is never without one.
        file = names.quarantine_record_name(name)
        data = record_bytes({"snapshot": snapshot, **record}, indent=1)
        temporary = names.temporary_name(self.generation, file)
        durable.replace_file(parents[1], file, data, temporary=temporary)
        target = os.path.join(parents[1], name)
        durable.rename(os.path.join(parents[0], snapshot), target)
        # Where it went first: a power cut may leave it under both names, never under none.
        for parent in reversed(parents):
            durable.fsync_directory(parent)
        return target

    def _free_quarantine_name(self, snapshot: str) -> str:
        taken = set(os.listdir(os.path.join(self.run_dir, names.QUARANTINE)))
        candidates = (names.quarantine_name(snapshot, n) for n in itertools.count(1))
        return next(
            name for name in candidates if not taken & {name, names.quarantine_record_name(name)}
        )

    def replace_latest(self, snapshot: str) -> None:
        """Point `latest` at a snapshot; durable on return."""
        self._require()
        durable.replace_symlink(
            self.run_dir,
            names.LATEST,
            f"{names.SNAPSHOTS}/{snapshot}",
            temporary=names.temporary_name(self.generation, names.LATEST),
        )


def try_lock(run_dir: str) -> OfdLock | None:
    """Take the commit lock at once, for `commit_lock`; None while somebody else has it.

    Raises RunDirectoryError where its file is gone, OSError.
    """
    with _lock_file_expected(run_dir):
        return OfdLock.try_acquire(os.path.join(run_dir, names.LOCK))


@contextlib.contextmanager
def commit_lock(
    run_dir: str,
    generation: int,
    *,
    timeout: float = COMMIT_LOCK_SECONDS,
    taken: OfdLock | None = None,
) -> Iterator[CommitLock]:
    """Hold the commit lock while the block runs, as the owner of `generation`.

    Waits for the lock (RunBusyError, which names who holds it, after `timeout` seconds), or goes on
    with one that `try_lock` has `taken`. Raises StaleGenerationError, with nothing touched, where a
    newer generation was claimed or another run has the path; RunDirectoryError where the lock's
    file is gone.
    """
    with taken or _acquire(run_dir, timeout) as lock:
        check_owner(run_dir, generation)
        yield CommitLock(run_dir, generation, lock)


def check_owner(run_dir: str, generation: int) -> None:
    """Raise StaleGenerationError where a newer generation was claimed or another run has the path.

    It stays true under the commit lock alone; without it this saves what would be done in vain.
    """
    newest = claimed_generation(run_dir)
    if newest != generation:
        owner = (
            f"generation {newest} owns the run"
            if newest > 0
            else f"{names.GENERATIONS}/ was removed from it: start the script again"
        )
        raise StaleGenerationError(
            f"{run_dir}: {owner}, generation {generation} does not", path=run_dir
        )
    check_not_replaced(run_dir, generation)


def _acquire(run_dir: str, timeout: float) -> OfdLock:
    try:
        with _lock_file_expected(run_dir):
            return OfdLock.acquire(os.path.join(run_dir, names.LOCK), timeout=timeout)
    except TimeoutError as error:
        raise lock_busy(run_dir) from error


@contextlib.contextmanager
def _lock_file_expected(run_dir: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise RunDirectoryError(
            f"{run_dir}: its file {names.LOCK!r}, or all of it, was moved or removed while a "
            "trainer owned it: nothing can be committed until the script is started again, which "
            "makes the file anew",
            path=run_dir,
        ) from error
