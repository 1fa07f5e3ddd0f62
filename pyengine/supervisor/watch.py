"""One start of the command as its trainers show it, and what their runs hold.

Trainers are found by the lifeline that the environment names (pyengine.shm.lifeline), so that it
does not matter how many wrappers lie between the supervisor and them. Where the environment was
cleaned on the way there is none: then output alone is a sign of life.
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import secrets
import signal
from dataclasses import dataclass
from typing import Any

from pyengine.catalog import scan
from pyengine.errors import ConfigError, SharedMemoryError
from pyengine.format.names import SnapshotName
from pyengine.fs import process
from pyengine.fs.limits import explain
from pyengine.fs.locks import is_locked
from pyengine.shm import lifeline
from pyengine.shm.headroom import headroom
from pyengine.shm.lifeline import Lifeline, SlotView
from pyengine.supervisor.bounded import call_within

_PROBE_SECONDS = 5.0
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Watch:
    """The supervisor's end of a lifeline; owns it until `close`. SharedMemoryError."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("pyengine-lifeline", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # With all its pages: a trainer's tick must not meet a full memory.
            os.posix_fallocate(self._fd, 0, lifeline.LIFELINE_BYTES)
        except OSError as error:
            os.close(self._fd)
            needed, free = lifeline.LIFELINE_BYTES, headroom(with_shm=False)
            raise SharedMemoryError(
                f"the supervisor needs {needed} bytes of shared memory, {free} are free "
                f"({explain(error)}); the command was not started",
                needed_bytes=needed,
                free_bytes=free,
            ) from error
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        self._memory = mmap.mmap(self._fd, lifeline.LIFELINE_BYTES)
        token = secrets.token_bytes(lifeline.TOKEN_BYTES)
        head = lifeline.MAGIC + token
        self._memory[: len(head)] = head
        self.address = f"{os.getpid()}:{self._fd}:{token.hex()}"
        """What the environment of the command has to say."""

    def close(self) -> None:
        """Let go of the lifeline; trainers keep what they have mapped."""
        self._memory.close()
        os.close(self._fd)

    def trainers(self) -> list[SlotView]:
        """Return what every process that made an engine says, dead ones too."""
        return lifeline.read_slots(self._memory)

    def beats(self) -> int:
        """Return a number that changes with every sign of life of any trainer, ticks above all."""
        return sum(trainer.signs + trainer.ticks for trainer in self.trainers())

    def ticks(self) -> int:
        """Return how often the trainer that got furthest has ticked, of those that live: a wrapper
        may have started a new one in place of one that died."""
        path = f"/proc/self/fd/{self._fd}"
        living = (t for t in self.trainers() if t.ticks and is_locked(path, t.slot))
        return max((trainer.ticks for trainer in living), default=0)

    def last_word(self) -> tuple[dict[str, Any] | None, int | None]:
        """Return the exception that a trainer named (the first slot's that did), and the step of
        the last tick; None where nobody said."""
        trainers = self.trainers()
        reports = [trainer.report for trainer in trainers if trainer.report is not None]
        steps = [trainer.step for trainer in trainers if trainer.step is not None]
        return (reports[0] if reports else None), max(steps, default=None)

    def runs(self) -> dict[str, int]:
        """Return the runs that trainers work on, and the lowest generation they claimed of each."""
        found: dict[str, int] = {}
        for trainer in self.trainers():
            for run, generation in trainer.runs.items():
                found[run] = min(generation, found.get(run, generation))
        return found

    def untold_runs(self) -> int:
        """Return how many runs there are besides, of which trainers had no room to say which."""
        return sum(trainer.untold_runs for trainer in self.trainers())

    def send(self, number: int) -> list[int]:
        """Send a signal to the trainers that live; return their pids. None, in containers with
        process ids of their own: whoever cannot be proved to be meant is left alone."""
        return [trainer.pid for trainer in self.trainers() if _send(trainer, number)]


def refuse_nesting() -> None:
    """Raise ConfigError, for whoever supervises this process too, where that is `pyengine run`.

    It would see no tick of trainers that report to us, and take a silent one for hung; and ending
    us, it would leave them running, for they are in a process group of their own.
    """
    above = Lifeline.attach()
    if above is None:
        return
    error = ConfigError(
        "pyengine run was started by another pyengine run, which could not see the trainer's signs "
        "of life: leave one of the two out"
    )
    above.report(error)
    raise error


def _send(trainer: SlotView, number: int) -> bool:
    """Send a signal to exactly this process: pinned by a pidfd before its start is compared."""
    try:
        pidfd = os.pidfd_open(trainer.pid)
    except OSError:
        return False
    try:
        status = process.read_status(trainer.pid)
        is_meant = status is not None and status.start_ticks == trainer.start_ticks
        if not is_meant or status is None or status.is_dead:
            return False
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


@dataclass(frozen=True, slots=True)
class Probe:
    """What runs hold: of each that could be reached the newest committed snapshot as (generation,
    sequence, name), None: it has none; and which run could not be, with the reason. `unknown`: why
    there may be snapshots besides."""

    newest: dict[str, tuple[int, int, str] | None]
    unreachable: str | None
    unknown: str | None = None


def probe(runs: list[str], unknown: str | None = None) -> Probe:
    """Look at run directories, each of which was there before. Blocks at most 5 s for each.

    `unknown` says why these may not be all, if that is so.
    """
    newest: dict[str, tuple[int, int, str] | None] = {}
    unreachable = None
    for run in runs:
        try:
            committed = call_within(_PROBE_SECONDS, functools.partial(_committed, run))
        except OSError as error:
            unreachable = f"{run}: {error}"
            continue
        last = committed[-1] if committed else None
        newest[run] = None if last is None else (last.generation, last.sequence, last.text)
    return Probe(newest, unreachable, unreachable or unknown)


def is_there(run: str) -> bool:
    """Return whether a directory is there; no answer within 5 s is none."""
    try:
        return call_within(_PROBE_SECONDS, functools.partial(os.path.isdir, run))
    except OSError:
        return False


def _committed(run: str) -> list[SnapshotName]:
    os.listdir(run)  # raises where the run is gone; the scan would find it empty
    return scan.committed_names(run)
