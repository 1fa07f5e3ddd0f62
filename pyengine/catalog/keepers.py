"""Who keeps a run from being claimed, or its commit lock: for errors, and to end who is frozen.

A lock belongs to an open file, so the kernel names no process with it; /proc tells which process
has that file open and holds the lock through it: not always the one that took it, for a fork that
Python did not see keeps the file. What generation files say of that process, with the same start,
makes it one of the run's own: only such a one is ever ended.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyengine.catalog import scan
from pyengine.catalog.generation import generation_path, read_parties, read_party
from pyengine.errors import RunBusyError
from pyengine.format import names
from pyengine.fs import locks, process
from pyengine.fs.process import ProcessIdentity

_BYTES = {"owner": names.OWNER_BYTE, "writer": names.WRITER_BYTE}


@dataclass(frozen=True, slots=True)
class Keeper:
    """One process: who it is, as far as is known, and as what a generation file names it.

    `generation` is 0 where none does; `kinship` says what it is to the run then.
    """

    identity: ProcessIdentity | None
    role: str = "process"
    generation: int = 0
    since: str = "an unknown time"
    kinship: str = "which is no process of the run"

    @property
    def is_frozen(self) -> bool:
        """Whether it is one of the run's own and can do nothing until somebody wakes it."""
        return self.generation > 0 and self.identity is not None and self.identity.is_frozen()

    def __str__(self) -> str:
        who = "a process that cannot be seen from here" if self.identity is None else self._named()
        return (
            who
            if self.identity is None or not self.identity.is_alive()
            else f"{who}, {self._doing()}"
        )

    def _named(self) -> str:
        assert self.identity is not None
        name = f"pid {self.identity.pid} on {self.identity.host}"
        if not self.generation:
            return f"{name}, {self.kinship}"
        return f"{name}, since {self.since} ({self.role} of generation {self.generation})"

    def _doing(self) -> str:
        assert self.identity is not None
        return process.describe(self.identity.pid)


def party_keeper(run_dir: str, generation: int, role: str) -> Keeper:
    """Return who keeps a generation in a role: the last process on record, or where that has ended
    whoever holds its lock instead (a child that C code forked), as far as /proc shows it."""
    party = read_party(run_dir, generation, role)
    recorded = party.identity
    if recorded is not None and (recorded.is_alive() or not recorded.is_local()):
        return Keeper(recorded, role, generation, party.since)
    former = f", pid {recorded.pid}, which has ended" if recorded is not None else ""
    kinship = f"which holds the lock of the {role} of generation {generation}{former}"
    for pid in locks.holders(generation_path(run_dir, generation), _BYTES[role]):
        identity = process.identify(pid)
        if identity is not None:
            return Keeper(identity, role, since=party.since, kinship=kinship)
    return Keeper(None, role, generation, party.since)


def lock_keepers(run_dir: str) -> list[Keeper]:
    """Return who holds the commit lock, found by the lock itself; where /proc does not show it (a
    process of another user or host), the run's own processes that are alive and frozen."""
    holders = locks.holders(os.path.join(run_dir, names.LOCK))
    known = _known(run_dir)
    if holders:
        return [_of_pid(pid, known) for pid in holders]
    return [keeper for keeper in known if keeper.is_frozen and _is_at_work(run_dir, keeper)]


def _known(run_dir: str) -> list[Keeper]:
    return [
        Keeper(party.identity, role, generation, party.since)
        for generation in sorted(scan.claimed_generations(run_dir), reverse=True)
        for role, party in read_parties(run_dir, generation)
    ]


def _of_pid(pid: int, known: list[Keeper]) -> Keeper:
    for keeper in known:
        if (
            keeper.identity is not None
            and keeper.identity.pid == pid
            and keeper.identity.is_alive()
        ):
            return keeper
    return Keeper(process.identify(pid))


def _is_at_work(run_dir: str, keeper: Keeper) -> bool:
    path = generation_path(run_dir, keeper.generation)
    return locks.is_locked(path, _BYTES[keeper.role])


def busy(run_dir: str, what: str, keeper: Keeper, advice: str) -> RunBusyError:
    """Return the error that says who keeps the run, and what can be done about it."""
    identity = keeper.identity
    return RunBusyError(
        f"{run_dir} {what} {keeper}; {advice}",
        path=run_dir,
        pid=identity.pid if identity is not None else 0,
        host=identity.host if identity is not None else "an unknown host",
        since=keeper.since,
    )


def lock_busy(run_dir: str, keepers: list[Keeper] | None = None) -> RunBusyError:
    """Return the error that says who holds the commit lock. Reads all of /proc."""
    keeper = next(iter(lock_keepers(run_dir) if keepers is None else keepers), Keeper(None))
    return busy(run_dir, "cannot be changed: its commit lock is held by", keeper, _LOCK_ADVICE)


_LOCK_ADVICE = "a commit takes moments: where that process hangs, end it, or wake it (kill -CONT)"
