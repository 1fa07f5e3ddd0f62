"""Rows of a source into a ring: one that is there, or that of a new run directory.

A new run holds one snapshot and nothing in it but the ring. It is an ordinary run, made by an
ordinary engine with a bounded ring beside the place where it appears by one rename.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.catalog import scan
from pyengine.catalog.generation import generation_path
from pyengine.catalog.keepers import busy, party_keeper
from pyengine.catalog.new_run import appear, check_new_run, leave_place, place_beside
from pyengine.config import DRAIN_WAIT_SECONDS
from pyengine.engine.engine import SnapshotEngine
from pyengine.engine.settings import check_step
from pyengine.errors import ConfigError, RowError, UnportableError
from pyengine.events import Progress, logger
from pyengine.format import names
from pyengine.format.levels import PARTIAL
from pyengine.format.schema import PRIORITY_FIELD, Schema
from pyengine.fs import durable
from pyengine.fs.locks import OfdLock
from pyengine.fs.mounts import is_remote
from pyengine.porting.source import Contents, RowSource, SourcePiece
from pyengine.replay.plan import least_memory, plan_ring
from pyengine.replay.priorities import PrioritizedReplayBuffer
from pyengine.replay.ring import ReplayBuffer

RING_BYTES = 64 * 1024 * 1024
"""Memory for rows that a new run's ring takes while it is filled, where a segment is not larger."""

_RUN = "run"
_REASON = "replay only: rows were imported, and nothing that learns from them"


@dataclass(frozen=True, slots=True)
class Imported:
    """What was brought in. `path` is the new run directory, None for rows that went `into=` a ring.

    `notes` says what was left out, or is otherwise than in the source.
    """

    source: str
    format: str
    path: str | None
    ring: str | None
    rows: int
    lanes: int
    fields: tuple[str, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an import goes: a new run directory `path`, or the ring `into`; one of the two."""

    path: str | os.PathLike[str] | None
    into: ReplayBuffer | None
    ring: str
    capacity: int | None
    step: int
    progress: Progress | None

    def check(self) -> None:
        """Refuse what cannot work before the source is opened: ConfigError, RunDirectoryError."""
        if (self.path is None) == (self.into is None):
            raise ConfigError("give a new run directory, or into= a ring: one of the two")
        if not names.is_component_name(self.ring):
            raise ConfigError(f"ring: expected a name, got {self.ring!r:.100}", field="ring")
        check_step(self.step)
        if self.path is not None:
            check_new_run(os.path.realpath(self.path))

    def receive(self, source: RowSource) -> Imported:
        """Bring the rows in."""
        if self.into is not None:
            _check_fits(source.contents, self.into)
            _fill(self.into, source, self.progress)
            lost = source.contents.rows - len(self.into)
            note = f"{lost} of the rows have left the ring for opening rows of its stacks"
            return self._told(source.contents, None, (note,) if lost > 0 else ())
        assert self.path is not None
        path = os.path.realpath(self.path)
        self._make_run(source, path)
        return self._told(source.contents, path)

    def _told(self, contents: Contents, path: str | None, notes: tuple[str, ...] = ()) -> Imported:
        return Imported(
            source=contents.path,
            format=contents.format,
            path=path,
            ring=None if path is None else self.ring,
            rows=contents.rows,
            lanes=len(contents.lane_rows),
            fields=tuple(contents.schema),
            notes=(*contents.notes, *notes),
        )

    def _make_run(self, source: RowSource, path: str) -> None:
        contents = source.contents
        if contents.rows == 0:
            raise UnportableError(
                f"{contents.path} holds no rows, and a run of none cannot be restored",
                path=contents.path,
                expected="at least one row",
                got=0,
            )
        with place_beside(path, clear=_clear) as place:
            run_dir = os.path.join(place, _RUN)
            with _new_ring(contents, self.capacity, bounded=not is_remote(place)) as ring:
                self._save(source, ring, run_dir)
            appear(run_dir, path)
            leave_place(place)

    def _save(self, source: RowSource, ring: ReplayBuffer, run_dir: str) -> None:
        contents = source.contents
        about = {
            "format": contents.format,
            "source": contents.path,
            "notes": list(contents.notes),
        }
        with SnapshotEngine(
            run_dir, keep_last=1, budget=None, track_rng=False, notes={"import": about}
        ) as engine:
            engine.track(**{self.ring: ring}).restore()
            engine.declare_level(PARTIAL, reasons=(_REASON,))
            _fill(ring, source, self.progress)
            if len(ring) < contents.rows:
                raise UnportableError(
                    f"{contents.path}: of {contents.rows} rows a ring of capacity {ring.capacity} "
                    f"holds {len(ring)} beside the opening rows of its stacks: give a larger one",
                    path=contents.path,
                    expected=contents.rows,
                    got=len(ring),
                )
            engine.snapshot(self.step).wait()


def _clear(path: str) -> None:
    """Remove what a killed import left, once the writer of its run has ended. RunBusyError."""
    is_run = os.path.basename(path) == _RUN and os.path.isdir(path)
    for generation in scan.claimed_generations(path) if is_run else ():
        try:
            claimed = generation_path(path, generation)
            OfdLock.acquire(claimed, names.WRITER_BYTE, timeout=DRAIN_WAIT_SECONDS).release()
        except FileNotFoundError:
            continue  # named by something else alone
        except TimeoutError as error:
            what = "was left by a killed import, and is still being drained by the writer,"
            keeper = party_keeper(path, generation, "writer")
            raise busy(path, what, keeper, "wait for its end") from error
    durable.remove_tree(path)


def _new_ring(contents: Contents, capacity: int | None, *, bounded: bool) -> ReplayBuffer:
    """Return a ring that all rows fit into, with as little memory as it takes where `bounded`."""
    lanes = len(contents.lane_rows)
    needed = max(contents.lane_rows) * lanes
    if capacity is None:
        capacity = max(needed, contents.capacity or 0)
    schema, kind = contents.schema, ReplayBuffer
    options: dict[str, Any] = {}
    if contents.priorities is not None:
        fields = {name: one for name, one in schema.items() if name != PRIORITY_FIELD}
        schema = Schema(fields, episode_end=schema.episode_end)
        kind = PrioritizedReplayBuffer
        options.update(contents.priorities)
    if bounded:
        plan = plan_ring(contents.schema, capacity, lanes)
        options["memory_limit"] = max(RING_BYTES, least_memory(plan))
    else:
        logger.warning("the run is on a network file system: all rows are held in memory first")
    ring = kind(schema, capacity, num_envs=lanes, seed=0, **options)
    try:
        _check_fits(contents, ring)
    except BaseException:
        ring.close()
        raise
    return ring


def _check_fits(contents: Contents, ring: ReplayBuffer) -> None:
    """Raise UnportableError where the ring has other lanes or fields, or no room for all rows."""
    lanes = len(contents.lane_rows)
    if lanes != ring.num_envs:
        raise UnportableError(
            f"{contents.path} has {lanes} lanes, the ring {ring.num_envs}: make it with "
            f"num_envs={lanes}",
            path=contents.path,
            expected=ring.num_envs,
            got=lanes,
        )
    per_lane = ring.capacity // lanes
    if max(contents.lane_rows, default=0) > per_lane:
        raise UnportableError(
            f"{contents.path} has up to {max(contents.lane_rows)} rows a lane, the ring holds "
            f"{per_lane}: a capacity of at least {max(contents.lane_rows) * lanes} takes them all",
            path=contents.path,
            expected=per_lane,
            got=max(contents.lane_rows),
        )
    here = {
        name: one
        for name, one in ring.schema.items()
        if one.default is None or name in contents.schema
    }
    there = contents.schema
    differing = sorted(
        name
        for name in {*here, *there}
        if name not in here or name not in there or here[name].shape != there[name].shape
    )
    if differing:
        raise UnportableError(
            f"{contents.path} does not fit the ring: "
            + "; ".join(
                f"{name!r} is {_shown(there, name)} there, {_shown(ring.schema, name)} here"
                for name in differing
            )
            + ". Make a ring with these fields, or rename them (rename=, --rename)",
            path=contents.path,
            expected=repr(ring.schema),
            got=repr(there),
        )


def _shown(schema: Schema, name: str) -> str:
    field = schema.get(name)
    return "not" if field is None else f"{field.dtype}{list(field.shape)}"


def _fill(ring: ReplayBuffer, source: RowSource, progress: Progress | None) -> None:
    in_all, done = source.contents.rows, 0
    for piece in source.pieces():
        count = len(next(iter(piece.rows.values())))
        try:
            _append(ring, piece, count)
        except RowError as error:
            raise UnportableError(
                f"{source.contents.path}: rows {done} to {done + count - 1}: {error}",
                path=source.contents.path,
                expected=error.expected,
                got=error.got,
            ) from error
        done += count
        if progress is not None:
            progress(done, in_all)


def _append(ring: ReplayBuffer, piece: SourcePiece, count: int) -> None:
    """Append a piece, with breaks behind rows that end an episode and do not say so themselves."""
    own = dict(piece.rows)
    priorities = own.pop(PRIORITY_FIELD, None)
    ends = piece.ends if piece.ends is not None else np.zeros(count, bool)
    said = np.zeros(count, bool)
    for name in ring.schema.episode_end:
        said |= own[name].astype(bool)
    # With priorities a run at a time: between two there may be opening rows of stacks.
    stops = ends | said if priorities is not None else ends & ~said
    begin = 0
    for end in (*(np.flatnonzero(stops[:-1]) + 1).tolist(), count):
        ring.extend({name: rows[begin:end] for name, rows in own.items()}, lane=piece.lane)
        if priorities is not None:
            _set_priorities(ring, piece.lane, priorities[begin:end])
        if ends[end - 1] and not said[end - 1]:
            ring.break_episode(piece.lane)
        begin = end


def _set_priorities(ring: ReplayBuffer, lane: int, priorities: NDArray[Any]) -> None:
    """Give the newest rows of a lane their priorities, to which `extend` would add an epsilon."""
    newest = int(np.asarray(ring.total_count).reshape(-1)[lane])
    ids = np.arange(newest - len(priorities), newest)
    ring.update(ids * ring.num_envs + lane, **{PRIORITY_FIELD: priorities})
