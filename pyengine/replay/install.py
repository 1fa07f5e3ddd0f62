"""Put a snapshot's rows into fresh storage: map full segments, copy the rows of open ones.

The storage belongs to no ring meanwhile, so that whatever is found wrong changes nothing; a ring
takes it in one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from pyengine.errors import DamageError, StateMismatchError
from pyengine.format.buffer_header import BufferHeader, Extent
from pyengine.format.segment import KIND_SEGMENT
from pyengine.replay.plan import RingPlan
from pyengine.replay.segment_files import SegmentFile, SegmentFiles
from pyengine.replay.storage import Storage


class PreparedRing:
    """Storage that is whole and belongs to no ring yet; a context manager, `close()` idempotent.

    Made by ReplayBuffer.prepare, which starts `storage`'s reserving; `rows` are in it. Owns the
    storage until ReplayBuffer.exchange has put it into the ring.
    """

    def __init__(self, storage: Storage, header: BufferHeader | None, rows: int) -> None:
        self.storage = storage
        self.rows = rows
        self.is_taken = False
        self._header = header

    def install_sampler(self) -> None:
        """Set the sampling generator as it was saved; empty storage keeps the ring's own."""
        if self._header is not None:
            sampler = self._header.sampler
            state = int(sampler["state"], 16), int(sampler["increment"], 16)
            self.storage.core.seed_state = state

    def close(self) -> None:
        """Let go of storage that no ring has taken."""
        if not self.is_taken:
            self.storage.close()

    def __enter__(self) -> PreparedRing:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def check_header(plan: RingPlan, header: BufferHeader, label: str) -> None:
    """Raise StateMismatchError unless schema, capacity and lanes are the ring's."""
    sides: list[tuple[str, Any, Any]] = [
        ("capacity", plan.capacity, header.capacity),
        ("num_envs", plan.num_lanes, header.num_lanes),
        *_schema_sides(plan.schema.to_record(), header.schema),
        ("segment rows", plan.segment_rows, header.segment_rows),
    ]
    differing = [side for side in sides if side[1] != side[2]]
    if not differing:
        return
    told = "; ".join(f"{what}: {expected} here, {got} there" for what, expected, got in differing)
    raise StateMismatchError(
        f"{label}: the ring is not the one of the snapshot: {told}. Make it as it was saved, or "
        "restore with replay='skip'",
        component=label,
        expected={what: expected for what, expected, _ in differing},
        got={what: got for what, _, got in differing},
    )


def _schema_sides(
    here: Mapping[str, Any], there: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (what, here, there) for two schema records: each field, their order, the rest."""
    ours = {item["name"]: item for item in here["fields"]}
    theirs = {item["name"]: item for item in there["fields"]}
    for name in dict.fromkeys((*ours, *theirs)):
        yield f"field {name!r}", _shown_field(ours.get(name)), _shown_field(theirs.get(name))
    if ours.keys() == theirs.keys():
        yield "order of fields", list(ours), list(theirs)
    yield "episode_end", here["episode_end"], there["episode_end"]


def _shown_field(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "none"
    default = "" if record["default"] is None else f" default {record['default']}"
    mutable = " mutable" if record["mutable"] else ""
    return f"{record['dtype']}{list(record['shape'])}{mutable}{default}"


def install(
    storage: Storage,
    header: BufferHeader,
    files: Mapping[str, SegmentFile],
    mutable: Mapping[str, NDArray[Any]],
    *,
    eager: bool,
    replay_last: int | None,
    keep_breaks: bool,
) -> int:
    """Fill `storage` with all but the sampler; see ReplayBuffer.prepare. Returns the rows."""
    plan, core = storage.plan, storage.core
    rows = plan.segment_rows
    opened = SegmentFiles(files, plan)
    tails = _tails(header, replay_last)
    restored = 0
    with opened:
        opened.read_ahead(
            extent.file
            for extent in header.extents
            if extent.first_row + extent.row_count > tails[extent.lane]
        )
        for extent in header.extents:
            end = extent.first_row + extent.row_count
            total = header.lanes[extent.lane].total_count
            if end <= tails[extent.lane]:
                continue
            for segment in range(extent.first_row // rows, -(-end // rows)):
                if (segment + 1) * rows <= min(end, total):
                    if (segment + 1) * rows > tails[extent.lane]:
                        _map_full(storage, opened, extent, segment, eager=eager)
                else:
                    _copy_open(storage, opened, extent, segment)
        for name, array in storage.mutable_arrays().items():
            array[...] = mutable[name]
        for lane, record in enumerate(header.lanes):
            if tails[lane] == record.total_count and record.total_count % rows:
                # No extent names the segment that the next row goes into.
                storage.open_segment(lane, record.total_count // rows, "restore")
            core.set_lane(
                lane, tails[lane], record.total_count, record.break_pending or not keep_breaks
            )
            restored += record.total_count - tails[lane]
        core.lost_updates = int(header.sampler.get("lost_updates", 0))
    return restored


def _tails(header: BufferHeader, replay_last: int | None) -> list[int]:
    tails = [lane.tail for lane in header.lanes]
    # Rows that were given up lie nowhere: the window begins after the last of them.
    for run in header.dropped:
        tails[run.lane] = max(tails[run.lane], run.first_row + run.row_count)
    if replay_last is None:
        return tails
    per_lane = replay_last // len(tails)
    return [
        max(tail, lane.total_count - per_lane)
        for tail, lane in zip(tails, header.lanes, strict=True)
    ]


def _map_full(
    storage: Storage, opened: SegmentFiles, extent: Extent, segment: int, *, eager: bool
) -> None:
    """Let a full segment live in its file."""
    rows = storage.plan.segment_rows
    file = opened.get(extent.file)
    header = file.header
    run = header.runs[0]  # parse_header refuses a file without one
    is_image = (
        header.kind == KIND_SEGMENT
        and (header.row_capacity, header.row_count) == (rows, rows)
        and (run.lane, run.first_row) == (extent.lane, segment * rows)
        and extent.first_row - extent.file_row == run.first_row
        and file.record is not None
    )
    if not is_image:
        raise DamageError(
            f"{file.path}: does not hold segment {segment} of lane {extent.lane}, as the buffer "
            "header says",
            path=file.path,
            offset=0,
            expected=(extent.lane, segment * rows, rows),
            got=(run.lane, run.first_row, run.row_count),
        )
    assert file.record is not None
    if eager:
        file.verify_whole()
        for block in range(header.block_count):
            storage.control.mark_verified(extent.lane, segment, block)
    key = (extent.lane, segment)
    storage.mapped[key] = file.mapping
    storage.paths[key] = file.path
    opened.keep(extent.file)
    storage.core.map_segment(extent.lane, segment, file.mapping.address, file.record)


def _copy_open(storage: Storage, opened: SegmentFiles, extent: Extent, segment: int) -> None:
    """Copy the rows of a segment that was open at the cut into a slot."""
    rows = storage.plan.segment_rows
    file = opened.get(extent.file)
    first = max(segment * rows, extent.first_row)
    count = extent.first_row + extent.row_count - first
    file_row = extent.file_row + first - extent.first_row
    if not file.holds(extent.lane, first, count, file_row):
        raise DamageError(
            f"{file.path}: rows {first} to {first + count} of lane {extent.lane} are not at its "
            f"row {file_row}, as the buffer header says",
            path=file.path,
            offset=0,
        )
    file.verify_rows(file_row, count)
    image = storage.open_segment(extent.lane, segment, "restore")
    with memoryview(file.mapping) as source:
        for region, target in zip(file.header.fields, storage.plan.layout.fields, strict=True):
            offset = region.offset + file_row * region.row_bytes
            size = count * region.row_bytes
            start = image + target.offset + (first - segment * rows) * target.row_bytes
            storage.arena.view(start, size)[:] = source[offset : offset + size]
