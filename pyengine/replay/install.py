"""Put a snapshot's rows into fresh storage: map full segments, copy the rows of open ones.

The storage belongs to no ring meanwhile, so that whatever is found wrong changes nothing; a ring
takes it in one step.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from pyengine._native.ring import BlockFault, NoMemory, RingCore
from pyengine.errors import (
    ClosedError,
    DamageError,
    ForkedProcessError,
    SharedMemoryError,
    StateMismatchError,
)
from pyengine.format.buffer_header import BufferHeader, Extent
from pyengine.format.document import INTEGER_MAX
from pyengine.format.segment import SegmentHeader
from pyengine.replay.damage import build_marks, drop_rows, has_valid_rows, settle_fault
from pyengine.replay.plan import RingPlan
from pyengine.replay.reserving import give_memory
from pyengine.replay.segment_files import OpenFile, SegmentFile, SegmentFiles, holds_segment
from pyengine.replay.storage import Storage

_FILES_AHEAD = 3
"""Of an eager restore: the one that is verified, and two that the disk reads meanwhile."""

_UNPROVEN_MAX = 256
"""Files that are mapped and open until they are proven; a process may have 1,024."""

_DRAWS_AHEAD = 256
"""A usual batch. More would come before its turn, and in the way of what somebody waits for."""


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
            self.storage.core.seed_state = _read_sampler(self._header.sampler)[:2]
            if (priorities := self._header.priorities) is not None:
                self.storage.core.draws = priorities.draws

    def verify_first_batch(self) -> None:
        """Have the blocks verified, in a thread, that the first draws will touch. Damage is left to
        whoever meets it."""
        if self._header is not None and self._header.priorities is None:
            seed_state = _read_sampler(self._header.sampler)[:2]
            _ask_draws(self.storage.core, seed_state, verified=True)

    def close(self) -> None:
        """Let go of storage that no ring has taken."""
        if not self.is_taken:
            self.storage.close()

    def __enter__(self) -> PreparedRing:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def check_header(plan: RingPlan, header: BufferHeader, label: str) -> None:
    """Raise StateMismatchError unless schema, capacity and lanes are the ring's.

    KeyError, TypeError or ValueError: its records of schema and sampler make no sense.
    """
    _read_sampler(header.sampler)
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


def _read_sampler(record: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the state and the increment of the ring's generator, and its count of lost updates."""
    state, increment = int(record["state"], 16), int(record["increment"], 16)
    lost_updates = record.get("lost_updates", 0)
    if not (0 <= state < 1 << 128 and 0 <= increment < 1 << 128):
        raise ValueError("state and increment of a sampler have 128 bits")
    if type(lost_updates) is not int or not 0 <= lost_updates <= INTEGER_MAX:
        raise ValueError(f"lost_updates is {lost_updates!r:.100}")
    return state, increment, lost_updates


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
    stack = f" stack of {record['stack']}" if "stack" in record else ""
    after = f" next of {record['next_of']}" if "next_of" in record else ""
    return f"{record['dtype']}{list(record['shape'])}{stack}{after}{mutable}{default}"


def install(
    storage: Storage,
    header: BufferHeader,
    files: Mapping[str, SegmentFile],
    mutable: Mapping[str, NDArray[Any]],
    *,
    eager: bool,
    replay_last: int | None,
    keep_breaks: bool,
    replaced: Sequence[Extent],
) -> int:
    """Fill `storage` with all but the sampler; see ReplayBuffer.prepare. Returns the valid rows."""
    core = storage.core
    tails = _tails(header, replay_last)
    for lane, record in enumerate(header.lanes):
        # First, so that rows can be dropped in what follows; nobody else sees the storage yet.
        core.set_lane(
            lane, tails[lane], record.total_count, record.break_pending or not keep_breaks
        )
    for run in header.dropped:
        core.drop_rows(run.lane, run.first_row, run.row_count)
    with SegmentFiles(files, storage.plan) as opened:
        extents = [
            extent
            for extent in header.extents
            if extent.first_row + extent.row_count > tails[extent.lane]
        ]
        full = [extent for extent in extents if files[extent.file].record is not None]
        parts = [extent for extent in extents if files[extent.file].record is None]
        images = _OpenImages(storage, header)
        for extent in (*parts, *replaced):
            opened.ask(extent.file)
        unproven = _map_full(storage, opened, header, full)
        if not eager and header.priorities is None and not storage.plan.schema.stacks:
            _ask_draws(core, _read_sampler(header.sampler)[:2])
        while unproven:
            _prove(storage, opened, unproven.popleft())
        for extent in parts:
            _copy_open(storage, opened, header, extent, images)
        for extent in replaced:
            _verify_replaced(storage, opened, extent)
    if eager:
        _verify_mapped(storage)
    images.open_heads()
    for name, array in storage.mutable_arrays().items():
        array[...] = mutable[name]
    core.lost_updates = _read_sampler(header.sampler)[2]
    if storage.plan.schema.stacks:
        build_marks(storage)
        if not eager and header.priorities is None:
            _ask_draws(core, _read_sampler(header.sampler)[:2])
    return storage.valid_rows()


def _ask_draws(core: RingCore, seed_state: tuple[int, int], *, verified: bool = False) -> None:
    """Have the rows of the first batch read, and verified, while the restore goes on: which they
    are is known once files are mapped and, where rows have marks, these are built.

    In a thread: to ask for so many places takes some 5 ms of a core, to verify them 10.
    """

    def ask() -> None:
        with contextlib.suppress(ClosedError, ForkedProcessError):
            core.ask_draws(seed_state, _DRAWS_AHEAD, verified)

    threading.Thread(target=ask, name="pyengine-ask", daemon=True).start()


def _tails(header: BufferHeader, replay_last: int | None) -> list[int]:
    tails = [lane.tail for lane in header.lanes]
    if replay_last is None:
        return tails
    per_lane = replay_last // len(tails)
    return [
        max(tail, lane.total_count - per_lane)
        for tail, lane in zip(tails, header.lanes, strict=True)
    ]


class _OpenImages:
    """The slots of segments that are not full: opened once each, wherever their rows come from.

    They get their memory in a thread while files are mapped and proven: a slot takes some 10 ms.
    """

    def __init__(self, storage: Storage, header: BufferHeader) -> None:
        rows = storage.plan.segment_rows
        self._storage = storage
        self._heads = [
            (lane, record.total_count // rows)
            for lane, record in enumerate(header.lanes)
            if record.total_count % rows
        ]
        self._places: dict[tuple[int, int], int] = {}
        self._giving = threading.Thread(target=self._give, name="pyengine-slots", daemon=True)
        self._giving.start()

    def _give(self) -> None:
        # Who opens a slot says what is wrong.
        with contextlib.suppress(NoMemory, SharedMemoryError, ClosedError, ForkedProcessError):
            give_memory(self._storage, len(self._heads))

    def place(self, lane: int, segment: int) -> int:
        """Return the offset in the arena of a segment's image."""
        key = (lane, segment)
        if key not in self._places:
            self._giving.join()  # the slot that it is busy with would not be found
            self._places[key] = self._storage.open_segment(lane, segment, "restore")
        return self._places[key]

    def open_heads(self) -> None:
        """Open the segments that the next rows go into and that no extent names."""
        for head in self._heads:
            self.place(*head)


def _map_full(
    storage: Storage, opened: SegmentFiles, header: BufferHeader, extents: Iterable[Extent]
) -> deque[tuple[Extent, int]]:
    """Let full segments live in their files; return those, with their numbers, that are still to be
    proven, so that the disk reads meanwhile. Several extents name one that has holes."""
    rows, file_bytes = storage.plan.segment_rows, storage.plan.layout.file_bytes
    unproven: deque[tuple[Extent, int]] = deque()
    for extent in extents:
        file, lane = opened.files[extent.file], extent.lane
        first_row = extent.first_row - extent.file_row
        segment = first_row // rows
        if storage.paths.get((lane, segment)) == file.path:
            continue
        if len(unproven) == _UNPROVEN_MAX:
            _prove(storage, opened, unproven.popleft())
        mapping = opened.map(extent.file)
        is_place = (
            mapping.size == file_bytes
            and first_row == segment * rows
            and extent.file_row + extent.row_count <= rows
            and (segment + 1) * rows <= header.lanes[lane].total_count
            and (lane, segment) not in storage.paths
        )
        if not is_place:
            mapping.close()
            raise _elsewhere(file.path, extent, segment, opened.prove(extent.file))
        assert file.record is not None
        storage.mapped[lane, segment] = mapping
        storage.paths[lane, segment] = file.path
        storage.core.map_segment(lane, segment, mapping.address, file.record)
        unproven.append((extent, segment))
    return unproven


def _prove(storage: Storage, opened: SegmentFiles, mapped: tuple[Extent, int]) -> None:
    """Raise DamageError unless a mapped file is the one on record and holds the segment."""
    extent, segment = mapped
    found = opened.prove(extent.file)
    if not holds_segment(found, storage.plan, extent.lane, segment):
        raise _elsewhere(opened.files[extent.file].path, extent, segment, found)


def _elsewhere(path: str, extent: Extent, segment: int, found: SegmentHeader) -> DamageError:
    run, rows = found.runs[0], found.row_capacity
    return DamageError(
        f"{path}: does not hold segment {segment} of lane {extent.lane}, as the buffer header says",
        path=path,
        offset=0,
        expected=(extent.lane, extent.first_row - extent.file_row, rows),
        got=(run.lane, run.first_row, run.row_count),
    )


def _verify_mapped(storage: Storage) -> None:
    """Read all mapped files, some at a time, and verify their blocks."""
    mapped = list(storage.mapped.items())
    asked = 0
    for number, (key, _) in enumerate(mapped):
        for _, mapping in mapped[asked : number + _FILES_AHEAD]:
            mapping.advise_willneed(0, mapping.size)
        asked = max(asked, number + _FILES_AHEAD)
        _verify_whole(storage, *key)


def _verify_whole(storage: Storage, lane: int, segment: int) -> None:
    """Verify every block of a mapped segment; one whose rows are dropped already may be bad."""
    given_up: list[int] = []
    while True:
        edges = [-1, *sorted(given_up), storage.plan.layout.block_count]
        try:
            # Anew each time: a second look at one block forgets what is known of the others.
            for before, end in itertools.pairwise(edges):
                storage.core.verify_blocks(lane, segment, before + 1, end)
            return
        except BlockFault as fault:
            if not has_valid_rows(storage, fault) or settle_fault(storage, fault):
                given_up.append(fault.block)


def _copy_open(
    storage: Storage,
    opened: SegmentFiles,
    header: BufferHeader,
    extent: Extent,
    images: _OpenImages,
) -> None:
    """Copy rows of segments that were open at the cut into slots."""
    rows = storage.plan.segment_rows
    file = opened.get(extent.file)
    end = extent.first_row + extent.row_count
    if end > header.lanes[extent.lane].total_count // rows * rows + rows or not file.holds(
        extent.lane, extent.first_row, extent.row_count, extent.file_row
    ):
        raise _misplaced(file, extent)
    for segment in range(extent.first_row // rows, -(-end // rows)):
        if (segment + 1) * rows <= header.lanes[extent.lane].total_count:
            raise _misplaced(file, extent)  # a full one has a file of its own
        first = max(segment * rows, extent.first_row)
        count = min(end, (segment + 1) * rows) - first
        file_row = extent.file_row + first - extent.first_row
        image = images.place(extent.lane, segment)
        targets = [
            storage.arena.view(
                image + field.offset + (first - segment * rows) * field.row_bytes,
                count * field.row_bytes,
            )
            for field in storage.plan.layout.fields
        ]
        for bad in file.copy_rows(file_row, count, targets):
            if storage.on_damage == "raise":
                raise bad.error
            begin = first + bad.rows.start - file_row
            drop_rows(storage, extent.lane, begin, len(bad.rows), bad.error)


def _verify_replaced(storage: Storage, opened: SegmentFiles, extent: Extent) -> None:
    """Give up rows that a segment has in place of a part which is damaged where they lie."""
    file = opened.get(extent.file)
    sizes = [extent.row_count * field.row_bytes for field in storage.plan.layout.fields]
    scratch = [memoryview(bytearray(size)) for size in sizes]
    for bad in file.copy_rows(extent.file_row, extent.row_count, scratch):
        if storage.on_damage == "raise":
            raise bad.error
        first = extent.first_row + bad.rows.start - extent.file_row
        drop_rows(storage, extent.lane, first, len(bad.rows), bad.error)


def _misplaced(file: OpenFile, extent: Extent) -> DamageError:
    end = extent.first_row + extent.row_count
    return DamageError(
        f"{file.path}: rows {extent.first_row} to {end} of lane {extent.lane} are not at its row "
        f"{extent.file_row}, as the buffer header says",
        path=file.path,
        offset=0,
    )
