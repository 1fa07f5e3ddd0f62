"""The files of claims, `generations/<g>`: one JSON line for the owner, one for each writer, and one
for a writer's end (catalog.endings).

Lines are only ever appended, so that nothing is overwritten in place; a torn last line is normal
after a crash and is skipped. Life is told by the locks on the file, never by what it says.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyengine import __version__, config
from pyengine.errors import DamageError, RestoreError, StaleGenerationError
from pyengine.format import names
from pyengine.format.manifest import utc_timestamp
from pyengine.format.sealed import parse_record, record_bytes
from pyengine.fs import durable, process
from pyengine.fs.beneath import read_beneath
from pyengine.fs.locks import OfdLock, is_replaced
from pyengine.fs.process import ProcessIdentity

_RECORD_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Party:
    """Who is on record in a generation file, since when (ISO 8601, UTC), and as which rank."""

    identity: ProcessIdentity | None
    since: str
    rank: int = 0


def check_not_replaced(run_dir: str, generation: int) -> None:
    """Raise StaleGenerationError where another run lies in the path of the one that this process
    has claimed as `generation`."""
    if is_replaced(generation_path(run_dir, generation)):
        raise StaleGenerationError(
            f"{run_dir} is another run now: the one that this trainer owns was moved or removed, "
            "so that it can save nothing any more; start it again, each run in a directory of its "
            "own",
            path=run_dir,
        )


def reserve_writer_lock(run_dir: str, generation: int) -> OfdLock | None:
    """Take the writer's byte for a writer that is about to start, to be handed over to it.

    Between its trainer's death and its own first steps the run is then never free. None where the
    byte is taken, or cannot be: the writer waits for it by itself.
    """
    try:
        return OfdLock.try_acquire(generation_path(run_dir, generation), names.WRITER_BYTE)
    except OSError:
        return None


def writer_lock(
    run_dir: str,
    generation: int,
    *,
    inherited: int | None = None,
    timeout: float | None = config.WRITER_START_SECONDS,
) -> OfdLock:
    """Hold the writer's byte of a generation and put this process on record as its writer.

    `inherited` is a descriptor through which the trainer took it already (`reserve_writer_lock`).
    Raises TimeoutError where another writer of the generation still lives after `timeout` seconds.
    """
    path = generation_path(run_dir, generation)
    lock = None if inherited is None else OfdLock.adopt(inherited, path, names.WRITER_BYTE)
    if lock is None:
        lock = OfdLock.acquire(path, names.WRITER_BYTE, timeout=timeout)
    try:
        append_party(path, "writer")
    except BaseException:
        lock.release()
        raise
    return lock


def append_party(path: str, role: str) -> None:
    """Put this process on record in a generation file as "owner" or "writer"; durable on return.

    Raises NoSpaceError, OSError.
    """
    record = {
        "role": role,
        **process.current().to_dict(),
        "rank": config.process_rank(),
        "since": utc_timestamp(),
        "pyengine": __version__,
        **({"records_end": True} if role == "writer" else {}),
    }
    durable.append_line(path, record_bytes(record))


def generation_path(run_dir: str, generation: int) -> str:
    """Return the path of a claim's file."""
    return os.path.join(run_dir, names.GENERATIONS, names.generation_name(generation))


def read_party(run_dir: str, generation: int, role: str) -> Party:
    """Return the last party of a role on record. A torn last line is normal after a crash."""
    parties = [party for found, party in read_parties(run_dir, generation) if found == role]
    return parties[-1] if parties else Party(None, "an unknown time")


def read_parties(run_dir: str, generation: int) -> list[tuple[str, Party]]:
    """Return all parties on record with their roles, in order. What is damaged is left out."""
    found = []
    for record in read_records(run_dir, generation):
        try:
            identity = ProcessIdentity.from_dict(record)
            party = Party(identity, str(record.get("since")), int(record.get("rank", 0)))
            found.append((str(record["role"]), party))
        except (ValueError, KeyError, TypeError, ArithmeticError):
            continue
    return found


def read_records(run_dir: str, generation: int) -> Iterator[dict[str, Any]]:
    """Yield the lines of a generation file that can be read, in order."""
    directory = os.path.join(run_dir, names.GENERATIONS)
    name = names.generation_name(generation)
    try:
        lines = read_beneath(directory, name, limit_bytes=_RECORD_MAX_BYTES).splitlines()
    except (OSError, DamageError):
        return
    for line in lines:
        with contextlib.suppress(RestoreError, ValueError):
            yield parse_record(line, name, limit_bytes=_RECORD_MAX_BYTES)
