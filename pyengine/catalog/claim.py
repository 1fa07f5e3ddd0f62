"""Claims: who owns a run directory.

A claim is a file `generations/<g>`, created exclusively under the commit lock, whose byte 0 its
owner holds as long as it lives and whose byte 1 its writer holds. The owner takes that byte on
behalf of a writer that it starts and hands it over, so that it is never free in between. The file's
first line names the owner; each writer of the generation adds a line of its own. Who else may be
alive, and whether a run can be had, is catalog.turn's business.
"""

from __future__ import annotations

import contextlib
import os
import threading

from pyengine import config
from pyengine.catalog import commit, janitor, scan, trust
from pyengine.catalog.commit_lock import CommitLock
from pyengine.catalog.generation import (
    append_party,
    generation_path,
    read_party,
)
from pyengine.catalog.lines import read_lines
from pyengine.catalog.run_record import read_run_id, write_run_record
from pyengine.catalog.turn import Turn
from pyengine.errors import RunBusyError, RunDirectoryError
from pyengine.events import logger
from pyengine.format import names
from pyengine.format.manifest import utc_timestamp
from pyengine.fs import durable, forking, process
from pyengine.fs.locks import OfdLock

Place = tuple[int, int]
"""Device and inode of a run directory; paths may come to mean another."""


class Claim:
    """Ownership of a run directory; a context manager. Made by `claim_run`.

    Lives until `release` or the death of the process. In a forked child it is inert.
    """

    def __init__(
        self, run_dir: str, run_id: str, generation: int, lock: OfdLock, place: Place
    ) -> None:
        self.run_dir = run_dir
        self.run_id = run_id
        self.generation = generation
        self._lock = lock
        self._place = place

    @property
    def is_held(self) -> bool:
        """Whether this process still holds the claim."""
        return self._lock.is_held

    def release(self) -> None:
        """Give the run up. Idempotent."""
        if self._lock.is_held:
            self._lock.release()
            _registry.leave(self._place)

    def __del__(self) -> None:
        # At the interpreter's end anything that release needs may be gone already; the kernel frees
        # the lock in any case.
        with contextlib.suppress(Exception):
            self.release()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Registry:
    """The runs claimed by this process, and since when."""

    def __init__(self) -> None:
        self._owned: dict[Place, str] = {}
        self._lock = threading.Lock()
        self._is_registered = False

    def enter(self, run_dir: str) -> Place:
        if not self._is_registered:
            forking.register_for_child(self)
            self._is_registered = True
        status = os.stat(run_dir)
        place = (status.st_dev, status.st_ino)
        with self._lock:
            since = self._owned.get(place)
            if since is None:
                self._owned[place] = utc_timestamp()
        if since is not None:
            raise RunBusyError(
                f"{run_dir} is already in use by this process (pid {os.getpid()}), since {since}: "
                "close the other engine first",
                path=run_dir,
                pid=os.getpid(),
                host=process.current().host,
                since=since,
            )
        return place

    def leave(self, place: Place) -> None:
        self._owned.pop(place, None)

    def _after_fork_in_child(self) -> None:
        self._owned.clear()
        self._lock = threading.Lock()
        self._is_registered = False


_registry = _Registry()


def claim_run(
    run_dir: str,
    *,
    wait_seconds: float = config.DRAIN_WAIT_SECONDS,
    takeover: bool = False,
    stop: threading.Event | None = None,
) -> Claim:
    """Claim the run directory, made where it does not exist; clean up after dead generations.

    Waits up to `wait_seconds` for the writer of a dead owner to drain, and ends it where it is
    frozen; `stop` ends the wait early, as a timeout does. `takeover` claims the run of a living
    owner too: that one can commit nothing any more, its files stay. The claim is durable on return.

    Raises RunBusyError (a living owner, or a writer that still drains), RunDirectoryError (not a
    directory that can be claimed: another rank's, another user's, or one that everybody may write
    to), NoSpaceError (the claim cannot be recorded), OSError.
    """
    path = os.path.realpath(run_dir)
    _check_path(path)
    _prepare(path)
    _check_rank(path)
    place = _registry.enter(path)
    try:
        turn = Turn(path, wait_seconds, stop or threading.Event(), takeover=takeover)
        with turn.take() as lock:
            claim, trash = _claim_locked(path, lock, place)
    except BaseException:
        _registry.leave(place)
        raise
    commit.empty_trash(trash)
    return claim


def _prepare(run_dir: str) -> None:
    if os.path.lexists(os.path.join(run_dir, names.MANIFEST)):
        raise RunDirectoryError(
            f"{run_dir} is a single snapshot, not a run: copy it into the {names.SNAPSHOTS}/ of a "
            "run directory under its own name to go on from it",
            path=run_dir,
        )
    for name in ("", *names.RUN_DIRECTORIES):
        path = os.path.join(run_dir, name).rstrip("/")
        durable.make_directory(path)
        trust.check_directory(path)
    lock = os.path.join(run_dir, names.LOCK)
    with contextlib.suppress(FileExistsError):
        durable.make_empty_file(lock)
    if not os.path.isfile(lock):
        raise RunDirectoryError(
            f"{lock} is not a regular file: remove it, and the next start makes it anew", path=lock
        )


def _check_path(run_dir: str) -> None:
    try:
        run_dir.encode()
    except UnicodeEncodeError as error:
        raise RunDirectoryError(
            f"{run_dir!a} is not valid UTF-8, so that no record can name it: choose another path",
            path=run_dir,
        ) from error


def _check_rank(run_dir: str) -> None:
    """Refuse a rank above 0 of a distributed job the directory of another rank, alive or not.

    Ranks may train apart, each in a directory of its own; in a shared one the first to come would
    shut out the others.
    """
    rank, newest = config.process_rank(), scan.claimed_generation(run_dir)
    owner = read_party(run_dir, newest, "owner")
    if rank > 0 and newest > 0 and owner.rank != rank:
        raise RunDirectoryError(
            f"{run_dir} is the run of rank {owner.rank}, and this is rank {rank} of a distributed "
            "job: give each rank a directory of its own, or let rank 0 alone take snapshots",
            path=run_dir,
        )


def _claim_locked(run_dir: str, lock: OfdLock, place: Place) -> tuple[Claim, list[str]]:
    _check_rank(run_dir)
    run_id = _run_id(run_dir)
    generation = highest_generation(run_dir) + 1
    if generation > names.NUMBER_MAX:
        raise RunDirectoryError(
            f"{run_dir}: something in it bears the generation {names.NUMBER_MAX} (a name, or a "
            f"record in {names.LINES}/), after which none can come: no run gets that far, so move "
            "it away",
            path=run_dir,
        )
    path = generation_path(run_dir, generation)
    durable.make_empty_file(path)
    owner = OfdLock.acquire(path, names.OWNER_BYTE, timeout=0)
    try:
        append_party(path, "owner")
        durable.fsync_directory(os.path.dirname(path))
        trash = janitor.sweep(CommitLock(run_dir, generation, lock))
    except BaseException:
        owner.release()
        raise
    return Claim(run_dir, run_id, generation, owner, place), trash


def highest_generation(run_dir: str) -> int:
    """Return the highest generation that anything in the directory tells of: names, and the
    records of lines; 0 where there is none.

    Claims alone would do while nobody removes `generations/` by hand.
    """
    recorded = (line.generation for line in read_lines(run_dir).values())
    return max((*scan.named_generations(run_dir), *recorded), default=0)


def _run_id(run_dir: str) -> str:
    """Return the id in run.json, which is written at the first claim. The commit lock is held."""
    if not os.path.lexists(os.path.join(run_dir, names.RUN_JSON)):
        write_run_record(run_dir, run_id=_saved_run_id(run_dir))
    return read_run_id(run_dir)


def _saved_run_id(run_dir: str) -> str | None:
    """Return the id that the newest snapshot tells, where run.json was removed from a run."""
    snapshots = scan.scan_snapshots(run_dir).snapshots
    if not snapshots:
        return None
    logger.warning(
        "%s has snapshots and no %s: made again, with the id that %s holds",
        run_dir,
        names.RUN_JSON,
        snapshots[-1].name,
    )
    return snapshots[-1].run_id
