"""buffer_header.json: how the files of one ring make up its rows.

Restore builds the ring from the extents alone. They and the dropped runs must cover the valid rows
of every lane, [tail, total_count), exactly: no gap, no overlap, nothing outside. The page is
pyengine/format/FORMAT.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from pyengine.errors import ConfigError, DamageError, FormatVersionError
from pyengine.format import names
from pyengine.format.document import INTEGER_MAX, Fields, is_plain_name, parse_document

_PLAIN_VERSION = 1
BUFFER_HEADER_VERSION = 2
"""Newest version that is read here. It is that of rings with stacks; others have version 1, so that
an older pyengine reads what it knows."""

BUFFER_HEADER_MAX_BYTES = 256 * 1024 * 1024
"""Largest buffer header that is read."""

_EXTENTS_MAX = 4_000_000
_LANES_MAX = 1_000_000
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True, slots=True)
class Extent:
    """Rows [first_row, first_row + row_count) of a lane: in `file`, from its row `file_row` on.

    `file` is a name in the header's own directory; its rows are counted over all its runs.
    """

    lane: int
    first_row: int
    row_count: int
    file: str
    file_row: int


@dataclass(frozen=True, slots=True)
class DroppedRun:
    """Rows of a lane that are valid by number but were given up, and lie in no file."""

    lane: int
    first_row: int
    row_count: int


@dataclass(frozen=True, slots=True)
class LaneRecord:
    """A lane at the cut: rows [tail, total_count) are valid; `break_pending`: the next row
    begins a new stretch, since the last one ended an episode."""

    tail: int
    total_count: int
    break_pending: bool


@dataclass(frozen=True, slots=True)
class SavedPriorities:
    """`highest` stored priority of any row so far, which new rows get; `draws`: batches so far."""

    alpha: float
    epsilon: float
    highest: float
    draws: int


@dataclass(frozen=True, slots=True)
class BufferHeader:
    """One ring at the cut. `line` is 16 hexadecimal digits; `mutable_file` a name beside it."""

    ring: str
    schema: dict[str, Any]
    capacity: int
    num_lanes: int
    segment_rows: int
    line: str
    lanes: tuple[LaneRecord, ...]
    extents: tuple[Extent, ...]
    dropped: tuple[DroppedRun, ...]
    sampler: dict[str, Any]
    mutable_file: str | None

    @property
    def version(self) -> int:
        """The version that the file has."""
        fields = self.schema.get("fields")
        records = fields if isinstance(fields, list) else []
        is_plain = not any(isinstance(item, dict) and "next_of" in item for item in records)
        return _PLAIN_VERSION if is_plain else BUFFER_HEADER_VERSION

    @property
    def priorities(self) -> SavedPriorities | None:
        """How rows were drawn by priority; None where they were not, and where none says so."""
        saved = self.sampler.get("priorities")
        return None if saved is None else SavedPriorities(**saved)

    @property
    def row_count(self) -> int:
        """Rows that can be restored, over all lanes."""
        return sum(extent.row_count for extent in self.extents)

    def to_bytes(self) -> bytes:
        """Return the file. ConfigError: `from_bytes` would refuse it, so it is never written."""
        try:
            data = json.dumps(_document(self), allow_nan=False, separators=(",", ":")).encode()
            BufferHeader.from_bytes(data, path=names.BUFFER_HEADER)
        except (DamageError, ValueError, TypeError, ZeroDivisionError) as error:
            raise ConfigError(f"the buffer header could not be read back: {error}") from error
        return data

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str) -> BufferHeader:
        """Read the file; `path` is for messages.

        DamageError: a field is wrong, or extents and dropped runs do not cover the rows exactly.
        FormatVersionError: another version.
        """
        fields = Fields(parse_document(data, path, limit_bytes=BUFFER_HEADER_MAX_BYTES), path)
        version = fields.integer("version")
        if not _PLAIN_VERSION <= version <= BUFFER_HEADER_VERSION:
            raise FormatVersionError(
                f"{path} has version {version}; this pyengine reads up to {BUFFER_HEADER_VERSION}",
                path=path,
                version=version,
            )
        header = _from_fields(fields)
        if version != header.version:
            fields.refuse("version", f"{header.version} with this schema", version)
        _check_coverage(header, fields)
        return header


def _document(header: BufferHeader) -> dict[str, Any]:
    per_lane = header.capacity // header.num_lanes
    return {
        "version": header.version,
        "ring": header.ring,
        "line": header.line,
        "capacity": header.capacity,
        "num_lanes": header.num_lanes,
        "segment_rows": header.segment_rows,
        "schema": header.schema,
        "sampler": header.sampler,
        "mutable_file": header.mutable_file,
        "lanes": [
            {
                "head": lane.total_count % per_lane,
                "tail": lane.tail,
                "total_count": lane.total_count,
                "break_pending": lane.break_pending,
            }
            for lane in header.lanes
        ],
        "extents": [[e.lane, e.first_row, e.row_count, e.file, e.file_row] for e in header.extents],
        "dropped": [[d.lane, d.first_row, d.row_count] for d in header.dropped],
    }


def _from_fields(fields: Fields) -> BufferHeader:
    num_lanes = fields.integer("num_lanes", low=1, high=_LANES_MAX)
    capacity = fields.integer("capacity", low=num_lanes)
    if capacity % num_lanes:
        fields.refuse("capacity", f"a multiple of the {num_lanes} lanes", capacity)
    lanes = tuple(
        _lane(lane, capacity // num_lanes) for lane in fields.records("lanes", limit=_LANES_MAX)
    )
    if len(lanes) != num_lanes:
        fields.refuse("lanes", f"{num_lanes} lanes", len(lanes))
    mutable_file = fields.optional_text("mutable_file")
    return BufferHeader(
        ring=fields.text("ring", limit=400),
        schema=fields.mapping("schema"),
        capacity=capacity,
        num_lanes=num_lanes,
        segment_rows=fields.integer("segment_rows", low=1),
        line=fields.hexadecimal("line"),
        lanes=lanes,
        extents=_extents(fields),
        dropped=_dropped(fields),
        sampler=_sampler(fields),
        mutable_file=None if mutable_file is None else fields.plain_name("mutable_file"),
    )


def _sampler(fields: Fields) -> dict[str, Any]:
    sampler = fields.mapping("sampler")
    if "priorities" not in sampler:
        return sampler
    given = fields.child("sampler").child("priorities")
    priorities = SavedPriorities(
        alpha=given.number("alpha", low=0, high=1),
        epsilon=given.number("epsilon", low=0, high=_FLOAT32_MAX),
        highest=given.number("highest", low=0, high=_FLOAT32_MAX),
        draws=given.integer("draws"),
    )
    return {**sampler, "priorities": asdict(priorities)}


def _lane(fields: Fields, rows_per_lane: int) -> LaneRecord:
    total_count = fields.integer("total_count")
    lane = LaneRecord(
        tail=fields.integer("tail", low=max(0, total_count - rows_per_lane), high=total_count),
        total_count=total_count,
        break_pending=fields.boolean("break_pending"),
    )
    head = fields.integer("head")
    if head != total_count % rows_per_lane:
        fields.refuse("head", f"total_count mod {rows_per_lane}", head)
    return lane


def _extents(fields: Fields) -> tuple[Extent, ...]:
    extents = []
    for item in fields.array("extents", limit=_EXTENTS_MAX):
        if not isinstance(item, list) or len(item) != 5:
            fields.refuse("extents", "[lane, first row, rows, file, first row in file]", item)
        lane, first_row, row_count, file, file_row = item
        _check_numbers(fields, "extents", (lane, first_row, row_count, file_row))
        if not isinstance(file, str) or len(file) > 255 or not is_plain_name(file):
            fields.refuse("extents", "a plain file name", file)
        extents.append(Extent(lane, first_row, row_count, file, file_row))
    return tuple(extents)


def _dropped(fields: Fields) -> tuple[DroppedRun, ...]:
    dropped = []
    for item in fields.array("dropped", limit=_EXTENTS_MAX):
        if not isinstance(item, list) or len(item) != 3:
            fields.refuse("dropped", "[lane, first row, rows]", item)
        _check_numbers(fields, "dropped", item)
        dropped.append(DroppedRun(*item))
    return tuple(dropped)


def _check_numbers(fields: Fields, name: str, numbers: Iterable[Any]) -> None:
    for number in numbers:
        if type(number) is not int or not 0 <= number <= INTEGER_MAX:
            fields.refuse(name, f"whole numbers from 0 to {INTEGER_MAX}", number)


def _check_coverage(header: BufferHeader, fields: Fields) -> None:
    runs: list[list[tuple[int, int]]] = [[] for _ in header.lanes]
    parts: Iterable[Extent | DroppedRun] = (*header.extents, *header.dropped)
    for part in parts:
        if part.lane >= header.num_lanes or part.row_count == 0:
            fields.refuse("extents", f"rows of lanes 0 to {header.num_lanes - 1}", part)
        runs[part.lane].append((part.first_row, part.row_count))
    for index, (lane, lane_runs) in enumerate(zip(header.lanes, runs, strict=True)):
        reached = lane.tail
        for first_row, row_count in sorted(lane_runs):
            if first_row != reached:
                fields.refuse(f"extents of lane {index}", f"to go on at row {reached}", first_row)
            reached += row_count
        if reached != lane.total_count:
            fields.refuse(f"extents of lane {index}", f"to end at {lane.total_count}", reached)
