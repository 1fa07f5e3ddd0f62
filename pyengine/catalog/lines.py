"""Lines: the histories of rows. Each restore, and each fresh start, opens one.

`lines/<id>.json` says which snapshot a line grew from and at which row of every lane it starts. It
is durable before the restore returns, and never changed. Files that go over to the line have their
names in the pool before there is a record, so that no record is without them; the temporary that
becomes it is there before the names, so that the names are not without a trace.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyengine.catalog.commit_lock import CommitLock, commit_lock
from pyengine.catalog.info import SnapshotInfo
from pyengine.errors import RestoreError
from pyengine.format import names
from pyengine.format.document import Fields
from pyengine.format.manifest import utc_timestamp
from pyengine.format.sealed import parse_record, record_bytes
from pyengine.fs import durable
from pyengine.fs.beneath import read_beneath

_LINE_MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """A history of rows: random 64-bit id, who opened it, and what it grew from.

    `number` counts the lines of its generation. `parent` is a snapshot name and `parent_line` that
    snapshot's line (16 hex), both None for a fresh start; `start_rows` holds by ring the next row
    id of every lane.
    """

    id: int
    generation: int
    parent: str | None
    parent_line: str | None
    start_rows: dict[str, tuple[int, ...]]
    opened_at: str
    number: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """What lines are ordered by: (generation, number). The time orders nothing."""
        return (self.generation, self.number)

    @property
    def text(self) -> str:
        """The id as manifests and file names write it: 16 hexadecimal digits."""
        return names.line_text(self.id)


def open_line(
    run_dir: str,
    generation: int,
    *,
    parent: SnapshotInfo | None,
    start_rows: Mapping[str, Sequence[int]],
) -> Line:
    """Open a new line that takes no files over; durable on return.

    Waits for the commit lock (RunBusyError). Raises StaleGenerationError where `generation` is no
    longer the newest claim; NoSpaceError, OSError.
    """
    with commit_lock(run_dir, generation) as held:
        line = next_line(held, draw_id(), parent=parent, start_rows=start_rows)
        with recording(held, line):
            pass
    return line


def draw_id() -> int:
    """Return a random 64-bit id for a new line."""
    return secrets.randbits(64)


def next_line(
    held: CommitLock,
    line_id: int,
    *,
    parent: SnapshotInfo | None,
    start_rows: Mapping[str, Sequence[int]],
) -> Line:
    """Return the next line of the generation, under an id that was drawn. Nothing is written."""
    numbers = [
        line.number
        for line in read_lines(held.run_dir).values()
        if line.generation == held.generation
    ]
    return Line(
        id=line_id,
        generation=held.generation,
        parent=parent.name if parent else None,
        parent_line=parent.line if parent else None,
        start_rows={ring: tuple(map(int, rows)) for ring, rows in start_rows.items()},
        opened_at=utc_timestamp(),
        number=1 + max(numbers, default=0),
    )


@contextlib.contextmanager
def recording(held: CommitLock, line: Line) -> Iterator[list[str]]:
    """Open a line around the block that gives files their names under it.

    The block adds to the list the directories that names were made in; they and the record are
    durable when this ends. Raises NoSpaceError, OSError: the line is not open then, and the names
    are the caller's to remove.
    """
    record = {
        "line": line.text,
        "generation": line.generation,
        "number": line.number,
        "parent": line.parent,
        "parent_line": line.parent_line,
        "start_rows": line.start_rows,
        "opened_at": line.opened_at,
    }
    name = names.line_file_name(line.id)
    with durable.replacing_file(
        os.path.join(held.run_dir, names.LINES),
        name,
        record_bytes(record),
        temporary=names.temporary_name(line.generation, name),
    ) as directories:
        yield directories


def read_lines(
    run_dir: str, tell: Callable[[RestoreError | OSError], object] = lambda _: None
) -> dict[str, Line]:
    """Return the lines of a run by id (16 hex). One that cannot be read is left out, and `tell` is
    called with the reason: whoever asks must then treat its history as unknown."""
    directory = os.path.join(run_dir, names.LINES)
    found = {}
    try:
        entries = os.listdir(directory)
    except FileNotFoundError:
        return {}
    for entry in entries:
        line_id = names.parse_line_file_name(entry)
        if line_id is not None:
            try:
                found[names.line_text(line_id)] = _read(directory, line_id)
            except (RestoreError, OSError) as error:
                tell(error)
    return found


def _read(directory: str, line_id: int) -> Line:
    name = names.line_file_name(line_id)
    path = os.path.join(directory, name)
    data = read_beneath(directory, name, limit_bytes=_LINE_MAX_BYTES)
    # Lines of before they were numbered were the only one of their generation, nearly always.
    document = {"number": 0, **parse_record(data, path, limit_bytes=_LINE_MAX_BYTES)}
    fields = Fields(document, path)
    if fields.hexadecimal("line") != names.line_text(line_id):
        fields.refuse("line", "the id in the file's name", fields.hexadecimal("line"))
    parent = fields.optional_text("parent", limit=255)
    if parent is not None and names.parse_snapshot_name(parent) is None:
        fields.refuse("parent", "the name of a snapshot", parent)
    return Line(
        id=line_id,
        generation=fields.integer("generation"),
        parent=parent,
        parent_line=None if parent is None else fields.hexadecimal("parent_line"),
        start_rows=_start_rows(fields),
        opened_at=fields.text("opened_at", limit=64),
        number=fields.integer("number"),
    )


def _start_rows(fields: Fields) -> dict[str, tuple[int, ...]]:
    rings = fields.mapping("start_rows")
    for ring, rows in rings.items():
        if not isinstance(rows, list) or not all(type(row) is int and row >= 0 for row in rows):
            fields.refuse(f"start_rows.{ring}", "a list of row ids", rows)
    return {ring: tuple(rows) for ring, rows in rings.items()}
