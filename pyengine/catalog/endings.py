"""How the writers of a run ended, on record in `generations/<g>`, for the next restore to tell.

A writer's last line says which rows it could not bring to disk, and which snapshot was the newest
then. It is appended to a file that is there, and its absence tells too: a writer that was killed,
or that a full disk kept from writing even this line, has not finished; where a line of rows was
opened and no writer is on record, it was killed before it got that far. What was lost concerns
nobody any more once a later generation has committed a snapshot: only claims since the one that is
restored are looked at.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyengine.catalog import scan
from pyengine.catalog.generation import check_not_replaced, generation_path, read_records
from pyengine.catalog.lines import read_lines
from pyengine.format import names
from pyengine.format.manifest import utc_timestamp
from pyengine.format.sealed import record_bytes
from pyengine.fs import durable
from pyengine.fs.locks import is_locked


@dataclass(frozen=True, slots=True)
class Loss:
    """Rows of one ring that were published and are in no file, at most, and why."""

    ring: str
    rows: int
    why: str


def record_end(run_dir: str, generation: int, losses: Sequence[Loss]) -> None:
    """Put on record that this process, the generation's writer, ends; durable on return.

    To be called while it holds the writer's byte. Raises NoSpaceError, OSError, and
    StaleGenerationError where another run has the path now.
    """
    check_not_replaced(run_dir, generation)
    committed = scan.committed_names(run_dir)
    record = {
        "role": "end",
        "pid": os.getpid(),
        "since": utc_timestamp(),
        "newest": committed[-1].text if committed else None,
        "lost": [asdict(loss) for loss in losses],
    }
    durable.append_line(generation_path(run_dir, generation), record_bytes(record))


def last_committed(run_dir: str, first: int) -> dict[int, str]:
    """Return, by generation from `first` on, the snapshot that its last writer has left as the
    newest one: none of a later generation."""
    found = {}
    for generation in sorted(scan.claimed_generations(run_dir)):
        for record in read_records(run_dir, generation) if generation >= first else ():
            newest = record.get("newest") if record.get("role") == "end" else None
            if isinstance(newest, str) and names.parse_snapshot_name(newest) is not None:
                found[generation] = newest
    return found


def told_of_losses(run_dir: str, first: int, end: int) -> list[str]:
    """Return a line for each loss of the generations `first` to `end` - 1.

    One whose writer lives was taken over: what that has not brought to disk stays with it.
    Generations that were written before ends were recorded say nothing.
    """
    told = []
    opened = {line.generation for line in read_lines(run_dir).values()}
    for generation in sorted(scan.claimed_generations(run_dir)):
        path = generation_path(run_dir, generation)
        if not first <= generation < end:
            continue
        if is_locked(path, names.WRITER_BYTE):
            told.append(
                f"generation {generation} was taken over while it lived: rows that it has added "
                "and its writer has not brought to disk, if any, are left behind"
            )
        else:
            records = list(read_records(run_dir, generation))
            told += _told(generation, records, has_line=generation in opened)
    return told


def _told(generation: int, records: list[dict[str, Any]], *, has_line: bool) -> list[str]:
    last = None
    for record in records:
        if record.get("role") in ("writer", "end"):
            last = record
    if last is None and has_line:
        return [
            f"the writer of generation {generation} was ended before it had begun: rows that were "
            "added then, if any, are lost"
        ]
    if last is None or (last["role"] == "writer" and not last.get("records_end")):
        return []
    if last["role"] == "writer":
        return [
            f"the writer of generation {generation} (pid {last.get('pid')}) was ended, or the disk "
            "was full, before it had finished: rows that were only in memory then are lost"
        ]
    lost = last.get("lost")
    return [
        f"the writer of generation {generation} could not bring up to {loss.get('rows')} rows of "
        f"ring {loss.get('ring')} to disk: they are lost ({loss.get('why')})"
        for loss in (lost if isinstance(lost, list) else [])
        if isinstance(loss, dict)
    ]
