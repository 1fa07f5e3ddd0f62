"""Rows that a run added after one of its snapshots, as all files of the run tell.

The newest line that went on from the snapshot (catalog.lineage) is followed as a chain: the
snapshot's own line, then each later one from where it starts. A line without rows and snapshot of
its own was opened by a restore that failed or got no further: an older one counts then. Rows before
a line's start that its own files lack, those of the lines before it have.

Per lane rows are taken one after the other, out of whichever file of the chain has them whole: of
the pool, where a dead trainer's writer has put them, of later snapshots, and of those in
quarantine. A lane ends at the first row that nobody has, unless what follows fills the window
alone; what is known to have come after that is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pyengine.catalog import trust, verify
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.later_files import LaterFile, Limits, RingFiles
from pyengine.catalog.lineage import History, Lineage, Stretch, snapshot_directories
from pyengine.catalog.rings import read_buffer_header
from pyengine.errors import PyengineError, RunDirectoryError
from pyengine.events import logger
from pyengine.format import names
from pyengine.format.buffer_header import BufferHeader, DroppedRun, Extent, LaneRecord

_RunT = TypeVar("_RunT", Extent, DroppedRun)


@dataclass(frozen=True, slots=True)
class LaterRows:
    """A ring as it was when the run ended: a header that names files of the snapshot and, by their
    paths, the `files` of later rows; and how many rows the snapshot did not know (`added`).

    `replaced` are the snapshot's extents of rows that a full segment of a restored line gives
    instead. That restore may have dropped some of them, for damage of the extents' files: their
    places in the segment are empty then. So the extents are to be verified, and what is damaged in
    them is lost."""

    header: BufferHeader
    files: dict[str, LaterFile]
    added: int
    replaced: tuple[Extent, ...] = ()


def find_later_rows(
    run_dir: str, info: SnapshotInfo, headers: Mapping[str, BufferHeader]
) -> tuple[dict[str, LaterRows], list[str]]:
    """Return, by ring, what came after the snapshot, and a line for people about all that is known
    to have come and cannot be given.

    `headers` are those of the snapshot. Rings without later rows are left out. Reads the files that
    it takes whole. Raises OSError; damage is told, and logged as an error.
    """
    lineage = Lineage(run_dir, info)
    told = [f"rows after {info.name} may stay behind: {error}" for error in lineage.unreadable]
    directories = list(_trusted(snapshot_directories(run_dir), told))
    rings = {
        ring: _Ring(header, RingFiles(run_dir, ring, header.segment_rows, directories))
        for ring, header in headers.items()
    }
    history = next(one for one in lineage.histories() if _went_on(one, rings))
    history = _continued(history, lineage, rings, told)
    later = {}
    for name, ring in rings.items():
        chain = _Chain(history, ring, lineage.snapshots, told)
        rows = chain.rows()
        told += chain.told_of_losses(rows.header)
        if rows.added:
            later[name] = rows
    for text in told:
        logger.error("%s", text)
    return later, told


@dataclass(frozen=True, slots=True)
class _Ring:
    header: BufferHeader
    files: RingFiles

    @property
    def totals(self) -> list[int]:
        return [lane.total_count for lane in self.header.lanes]

    def starts(self, stretch: Stretch) -> Sequence[int]:
        """Return the row of each lane at which a line goes on."""
        if stretch.start_rows is None:
            return self.totals
        return stretch.start_rows.get(self.header.ring, [0] * self.header.num_lanes)


def _trusted(directories: Iterable[str], told: list[str]) -> Iterator[str]:
    for directory in directories:
        try:
            trust.check_tree(directory)
        except RunDirectoryError as error:
            told.append(f"what {directory} has is not used: {error}")
        except FileNotFoundError:
            continue
        else:
            yield directory


def _went_on(history: History, rings: Mapping[str, _Ring]) -> bool:
    """Whether the last line of a history has rows, or a snapshot, of its own."""
    last = history[-1]
    return (
        len(history) == 1
        or last.has_snapshot
        or any(
            ring.files.has_rows_after(lane, start, last.line)
            for ring in rings.values()
            for lane, start in enumerate(ring.starts(last))
        )
    )


def _continued(
    history: History, lineage: Lineage, rings: Mapping[str, _Ring], told: list[str]
) -> History:
    """Return the history with the one line of unknown origin that proves to continue it; others
    that have later rows are told of."""
    in_pool = {names.line_text(line) for ring in rings.values() for line in ring.files.pool_lines}
    others = [one for one in lineage.unplaced(in_pool) if _is_later(one, rings)]
    if len(others) == 1 and _is_continuation(history, others[0], rings):
        return (*history, *others[0])
    for other in others:
        text = names.line_text(other[-1].line)
        told.append(
            f"line {text} has later rows, and nothing says which snapshot it grew from, since a "
            f"record in {names.LINES}/ is missing: they are not taken"
        )
    return history


def _is_later(history: History, rings: Mapping[str, _Ring]) -> bool:
    limits: Limits = {stretch.line: None for stretch in history}
    return any(
        ring.files.known_end(lane, limits) > total
        for ring in rings.values()
        for lane, total in enumerate(ring.totals)
    )


def _is_continuation(history: History, other: History, rings: Mapping[str, _Ring]) -> bool:
    """Whether a file that the other took over was written under the history's last line, after the
    snapshot was taken."""
    return any(
        ring.files.was_written_under(stretch.line, history[-1].line, lane, total)
        for stretch in other
        for ring in rings.values()
        for lane, total in enumerate(ring.totals)
    )


class _Chain:
    """One ring along a history: from which row on each line holds in each lane."""

    def __init__(
        self, history: History, ring: _Ring, snapshots: Sequence[SnapshotInfo], told: list[str]
    ) -> None:
        self._header, self._files = ring.header, ring.files
        totals = ring.totals
        self._lines: list[tuple[int, Sequence[int]]] = [(history[0].line, totals)]
        self._damaged = {
            stretch.line: ring.files.damaged_rows(stretch.parent)
            for stretch in history
            if stretch.parent is not None
        }
        for stretch in history[1:]:
            starts = ring.starts(stretch)
            if len(starts) != len(totals) or any(
                start < total for start, total in zip(starts, totals, strict=True)
            ):
                if ring.files.has_line(stretch.line):
                    told.append(
                        f"ring {ring.header.ring} began anew in line "
                        f"{names.line_text(stretch.line)}: its rows from there on do not follow "
                        "those of the snapshot, and are not taken"
                    )
                break
            self._lines.append((stretch.line, starts))
        lines = {names.line_text(line): line for line, _ in self._lines}
        self._later = [
            (lines[info.line], header)
            for info in snapshots
            if info.line in lines and (header := _read_header(info, ring.header)) is not None
        ]

    def rows(self) -> LaterRows:
        """Return the ring with everything that can be had."""
        header = self._header
        extents: list[Extent] = []
        lanes = []
        for index in range(header.num_lanes):
            limits = self._limits(index)
            lane, found = self._extend_lane(index, limits)
            empty = self._first_empty(index, found)
            if empty is not None:
                lane, found = self._extend_lane(index, _cut(limits, empty))
            lanes.append(lane)
            extents += found
        extended = replace(
            header,
            lanes=tuple(lanes),
            extents=tuple(_within(extents, lanes)),
            dropped=tuple(_within([*header.dropped, *self._dropped(lanes)], lanes)),
        )
        used = {extent.file for extent in extended.extents}
        added = sum(
            new.total_count - max(old.total_count, new.tail)
            for new, old in zip(lanes, header.lanes, strict=True)
        )
        files = {path: file for path, file in self._files.files.items() if path in used}
        return LaterRows(extended, files, added, tuple(self._replaced(extended, files)))

    def told_of_losses(self, extended: BufferHeader) -> Iterator[str]:
        """Yield a line for all lanes that went on alike beyond what was found."""
        lost: dict[tuple[int, int, str], list[int]] = {}
        for index, lane in enumerate(extended.lanes):
            end = self._known_end(index)
            if end > lane.total_count:
                why = self._files.why_not(index, lane.total_count, self._limits(index))
                lost.setdefault((lane.total_count, end, why), []).append(index)
        for (first, end, why), lanes in lost.items():
            which = f"lane {lanes[0]}" if len(lanes) == 1 else f"lanes {_numbers(lanes)}"
            yield (
                f"ring {extended.ring}, {which}: rows {first} to {end - 1} came after the snapshot "
                f"and are lost: {why}"
            )

    def _limits(self, lane: int) -> Limits:
        """Return until where each line holds in a lane: where a later one goes on."""
        limits: dict[int, int | None] = {}
        limit: int | None = None
        for line, starts in reversed(self._lines):
            limits[line] = limit
            limit = starts[lane] if limit is None else min(limit, starts[lane])
        return dict(reversed(limits.items()))

    def _known_end(self, lane: int) -> int:
        limits = self._limits(lane)
        ends = [self._files.known_end(lane, limits)]
        ends += [starts[lane] for _, starts in self._lines]
        for line, header in self._later:
            total, limit = header.lanes[lane].total_count, limits[line]
            ends.append(total if limit is None else min(total, limit))
        return max(ends)

    def _extend_lane(self, index: int, limits: Limits) -> tuple[LaneRecord, list[Extent]]:
        """Return a lane as it was at the end, and the extents of its rows."""
        header = self._header
        lane = header.lanes[index]
        window = header.capacity // header.num_lanes
        chain = self._files.chain(index, lane.total_count, limits)
        # A full segment takes the place of the parts that held its first rows.
        first = chain[0].first_row if chain else lane.total_count
        kept = [e for e in header.extents if e.lane == index and e.first_row < first]
        tail, total = lane.tail, _end(chain, lane.total_count)
        for start in self._files.starts_after(index, total, limits):
            # Rows between may have left the window: then those that follow fill it, but for the
            # open segment that a dead machine lost.
            later = self._files.chain(index, start, limits)
            if _end(later, start) - start >= window - 2 * header.segment_rows:
                kept, chain, tail, total = [], later, start, _end(later, start)
        grew = total > lane.total_count
        tail = max(tail, total - window)
        return LaneRecord(tail, total, lane.break_pending or grew), [*kept, *chain]

    def _first_empty(self, index: int, extents: Sequence[Extent]) -> int | None:
        """Return the first later row that a file has an empty place for.

        The restore that opened a line may have dropped rows for damage of its snapshot's part: what
        was written of their segment since has nothing in their places. A snapshot of the line lists
        them; without one the damaged part tells which they may be. Rows of the restored snapshot
        itself are `replaced` ones.
        """
        told = {line for line, _ in self._later}
        known = self._header.lanes[index].total_count
        before: set[int] = set()
        found: list[int] = []
        for line, _ in self._lines:
            for rows in self._damaged.get(line, ()) if line not in told else ():
                found += [
                    max(extent.first_row, rows.first_row, known)
                    for extent in extents
                    if (file := self._files.files.get(extent.file)) is not None
                    and rows.end > known
                    and file.header.line not in before
                    and self._files.has_place_empty(extent, rows)
                ]
            before.add(line)
        return min(found, default=None)

    def _dropped(self, lanes: Sequence[LaneRecord]) -> Iterator[DroppedRun]:
        """Yield rows that later snapshots list as dropped: files have empty places for them."""
        for index, lane in enumerate(lanes):
            reached, limits = self._header.lanes[index].total_count, self._limits(index)
            runs = [
                (run.first_row, run.first_row + run.row_count, limits[line])
                for line, header in self._later
                for run in header.dropped
                if run.lane == index
            ]
            for first, end, limit in sorted(runs, key=lambda run: run[:2]):
                first = max(first, reached)
                end = min(end, lane.total_count if limit is None else min(limit, lane.total_count))
                if first < end:
                    yield DroppedRun(index, first, end - first)
                    reached = end

    def _replaced(self, extended: BufferHeader, later: Mapping[str, LaterFile]) -> Iterator[Extent]:
        own = int(self._header.line, 16)
        full = [
            extent
            for extent in extended.extents
            if extent.file in later and later[extent.file].name.line != own
        ]
        for former in _within(self._header.extents, extended.lanes):
            if any(
                extent.lane == former.lane
                and extent.first_row <= former.first_row < extent.first_row + extent.row_count
                for extent in full
            ):
                yield former


def _read_header(info: SnapshotInfo, former: BufferHeader) -> BufferHeader | None:
    """Return the header of the ring in a later snapshot; None: it has none that can be trusted."""
    record = info.file(f"{names.ring_directory(former.ring)}/{names.BUFFER_HEADER}")
    if record is None:
        return None
    try:
        verify.check_file(info, record)
        header = read_buffer_header(info, record)
    except (PyengineError, OSError):
        return None
    return header if header.num_lanes == former.num_lanes else None


def _cut(limits: Limits, row: int) -> Limits:
    return {line: row if end is None else min(end, row) for line, end in limits.items()}


def _end(chain: list[Extent], default: int) -> int:
    return chain[-1].first_row + chain[-1].row_count if chain else default


def _within(runs: Iterable[_RunT], lanes: Sequence[LaneRecord]) -> Iterator[_RunT]:
    """Yield what of the runs lies in the windows."""
    for run in runs:
        lane = lanes[run.lane]
        cut = max(0, lane.tail - run.first_row)
        if cut >= run.row_count:
            continue
        if isinstance(run, Extent):
            run = replace(run, file_row=run.file_row + cut)
        yield replace(run, first_row=run.first_row + cut, row_count=run.row_count - cut)


def _numbers(lanes: Sequence[int]) -> str:
    """Return numbers as people write them: 0-3, 7."""
    spans: list[list[int]] = []
    for lane in lanes:
        if spans and lane == spans[-1][1] + 1:
            spans[-1][1] = lane
        else:
            spans.append([lane, lane])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
