"""Import from npz: arrays with one row a transition, as `export_npz` or anybody's savez wrote them.

Each array is read as a stream, all of them side by side. Arrays of objects are pickles and refused.
What `export_npz` said of the ring gives the same ring again; another file's arrays are fields in
their own shapes and dtypes, of one lane unless it has "@lane", and "terminated" and "truncated"
(bool) end episodes.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import SourceFormatError, UnportableError
from pyengine.events import Progress
from pyengine.format.dtypes import BY_NAME, dtype_name
from pyengine.format.schema import PRIORITY_FIELD, Field, Schema
from pyengine.porting.arrival import Destination, Imported
from pyengine.porting.npz_members import Member, read_about, read_header, read_member, read_rows
from pyengine.porting.npz_out import ABOUT, END, LANE
from pyengine.porting.pieces import rows_at_a_time
from pyengine.porting.source import (
    EPISODE_END,
    Contents,
    SourcePiece,
    open_source,
    reading,
)
from pyengine.replay.plan import numpy_dtype
from pyengine.replay.ring import ReplayBuffer

Array = NDArray[Any]

_SUFFIX = ".npy"
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError)


def import_npz(
    source: str | os.PathLike[str],
    run: str | os.PathLike[str] | None = None,
    *,
    into: ReplayBuffer | None = None,
    ring: str = "replay",
    capacity: int | None = None,
    rename: Mapping[str, str] | None = None,
    episode_end: Sequence[str] | None = None,
    step: int = 0,
    progress: Progress | None = None,
) -> Imported:
    """Bring the rows of an npz file into the new run directory `run`, or `into` a ring.

    A new run has one snapshot, of step `step`, with a ring of the name `ring` and nothing else; a
    script takes it with `engine.restore(allow=[...])`, which names what is not in it. `capacity` is
    that of the exported ring, or else that of the rows. `rename` gives fields other names;
    `episode_end` says which end an episode (bool), where the file does not.

    Raises SourceFormatError for what is no such file, or a damaged one, UnportableError naming both
    sides, ConfigError, SchemaError, RunDirectoryError, RunBusyError, NoSpaceError, OSError. Nothing
    is left at `run` then; a ring keeps the rows that it was given before.
    """
    destination = Destination(run, into, ring, capacity, step, progress)
    destination.check()
    with open_npz(os.fspath(source), rename or {}, episode_end) as rows:
        return destination.receive(rows)


@contextlib.contextmanager
def open_npz(
    path: str, rename: Mapping[str, str], episode_end: Sequence[str] | None
) -> Iterator[NpzRows]:
    """Give the rows of an npz file. SourceFormatError, UnportableError, SchemaError, OSError."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(os.fdopen(open_source(path, "an npz file"), "rb"))
        with reading(path, "npz", *_BROKEN):
            archive = stack.enter_context(zipfile.ZipFile(file))
            rows = NpzRows(path, archive, rename, episode_end)
        yield rows


class NpzRows:
    """An npz file as a source of rows. Its members are checked; nothing of them is in memory."""

    def __init__(
        self,
        path: str,
        archive: zipfile.ZipFile,
        rename: Mapping[str, str],
        episode_end: Sequence[str] | None,
    ) -> None:
        self._path = path
        self._archive = archive
        members = {}
        for entry in archive.namelist():
            name = entry.removesuffix(_SUFFIX)
            if name in members or not entry.endswith(_SUFFIX):
                raise SourceFormatError(f"{path}: {entry!r} is no array, or there twice", path=path)
            members[name] = entry
        about = read_about(path, archive, members.pop(ABOUT, None))
        found = {name: read_member(path, archive, name, entry) for name, entry in members.items()}
        self._lane, self._end = found.pop(LANE, None), found.pop(END, None)
        self._members = {rename.get(name, name): one for name, one in found.items()}
        missing = sorted(set(rename) - set(found))
        if missing or len(self._members) < len(found) or not found:
            raise UnportableError(
                f"{path} holds the arrays {', '.join(map(repr, found)) or 'none'}; rename="
                f"{dict(rename)} makes no fields of them",
                path=path,
                expected="arrays of rows with a name each",
                got=sorted(found),
            )
        self._check_counts()
        self.contents = self._describe(about, rename, episode_end)

    def _check_counts(self) -> None:
        extra = [one for one in (self._lane, self._end) if one is not None]
        counts = {one.name: one.count for one in (*self._members.values(), *extra)}
        if len(set(counts.values())) > 1:
            raise UnportableError(
                f"{self._path}: arrays have different numbers of rows: {counts}",
                path=self._path,
                expected="as many rows in each",
                got=counts,
            )
        for one, kinds in ((self._lane, "iu"), (self._end, "b")):
            if one is not None and (one.dtype.kind not in kinds or one.shape):
                raise UnportableError(
                    f"{self._path}: {one.name!r} is {one.dtype}{list(one.shape)}",
                    path=self._path,
                    expected="one integer a row" if kinds == "iu" else "one bool a row",
                    got=f"{one.dtype}{list(one.shape)}",
                )

    def _describe(
        self,
        about: dict[str, Any] | None,
        rename: Mapping[str, str],
        episode_end: Sequence[str] | None,
    ) -> Contents:
        priorities = None if about is None else about["priorities"]
        schema = self._schema(about, rename, episode_end)
        lanes = 1 if about is None else int(about["num_lanes"])
        lane_rows = self._count_lanes(lanes)
        return Contents(
            format="npz",
            path=self._path,
            schema=schema,
            lane_rows=lane_rows,
            capacity=None if about is None else int(about["capacity"]),
            priorities=priorities if PRIORITY_FIELD in schema else None,
        )

    def _schema(
        self,
        about: dict[str, Any] | None,
        rename: Mapping[str, str],
        episode_end: Sequence[str] | None,
    ) -> Schema:
        if about is not None:
            schema = Schema.from_record(_renamed(about["schema"], rename, episode_end))
            here = {name: (one.shape, numpy_dtype(one)) for name, one in schema.items()}
            there = {name: (one.shape, one.dtype) for name, one in self._members.items()}
            if here != there:
                raise SourceFormatError(
                    f"{self._path}: its arrays are not those that its schema tells of: {there} "
                    f"beside {here}",
                    path=self._path,
                )
            return schema
        fields = {name: Field(one.shape, self._dtype(one)) for name, one in self._members.items()}
        if episode_end is None:
            is_flag = {name: one.dtype == "bool" and not one.shape for name, one in fields.items()}
            episode_end = [name for name in EPISODE_END if is_flag.get(name)]
        return Schema(fields, episode_end=tuple(episode_end))

    def _dtype(self, member: Member) -> str:
        try:
            name = dtype_name(member.dtype)
        except KeyError:
            name = ""
        if not name or np.dtype(BY_NAME[name].numpy) != member.dtype:
            raise UnportableError(
                f"{self._path}: array {member.name!r} is {member.dtype}, a field is one of "
                f"{', '.join(BY_NAME)}, in little-endian order",
                path=self._path,
                expected=tuple(BY_NAME),
                got=str(member.dtype),
            )
        return name

    def _count_lanes(self, lanes: int) -> tuple[int, ...]:
        count = next(iter(self._members.values())).count
        if self._lane is None:
            if lanes != 1:
                raise SourceFormatError(f"{self._path}: it has no {LANE!r}", path=self._path)
            return (count,)
        counts = np.zeros(lanes, np.int64)
        with self._archive.open(self._lane.entry) as stream:
            read_header(stream)
            for begin in range(0, count, 1 << 20):
                part = read_rows(stream, self._lane, min(1 << 20, count - begin))
                if part.size and not 0 <= int(part.min()) <= int(part.max()) < 1 << 20:
                    raise SourceFormatError(f"{self._path}: impossible lanes", path=self._path)
                found = np.bincount(part.astype(np.int64), minlength=len(counts))
                counts = np.pad(counts, (0, len(found) - len(counts))) + found
        if lanes == 1 and not counts.all():
            raise UnportableError(
                f"{self._path}: {LANE!r} goes up to {len(counts) - 1}, and some lanes have no row",
                path=self._path,
                expected="lanes numbered from 0, with rows in each",
                got=f"{np.count_nonzero(counts)} lanes with rows",
            )
        return tuple(map(int, counts))

    def pieces(self) -> Iterator[SourcePiece]:
        """Yield all rows in the file's order. SourceFormatError where they cannot be read."""
        extra = {one.name: one for one in (self._lane, self._end) if one is not None}
        members = {**self._members, **extra}
        count = next(iter(self._members.values())).count
        at_once = rows_at_a_time(self.contents.schema.values())
        with contextlib.ExitStack() as stack:
            with reading(self._path, "npz", *_BROKEN):
                streams = {
                    name: stack.enter_context(self._archive.open(one.entry))
                    for name, one in members.items()
                }
                for stream in streams.values():
                    read_header(stream)
            for begin in range(0, count, at_once):
                many = min(at_once, count - begin)
                with reading(self._path, "npz", *_BROKEN):
                    rows = {n: read_rows(streams[n], one, many) for n, one in members.items()}
                yield from self._by_lane(rows)
            with reading(self._path, "npz", *_BROKEN):
                for stream in streams.values():
                    stream.read(1)  # at the end of a member its checksum is compared

    def _by_lane(self, rows: dict[str, Array]) -> Iterator[SourcePiece]:
        lanes, ends = rows.pop(LANE, None), rows.pop(END, None)
        if lanes is None:
            yield SourcePiece(0, rows, ends)
            return
        changes = np.flatnonzero(lanes[1:] != lanes[:-1]) + 1
        bounds = [0, *changes.tolist(), len(lanes)]
        for begin, end in pairwise(bounds):
            part = {name: values[begin:end] for name, values in rows.items()}
            own_ends = None if ends is None else ends[begin:end]
            yield SourcePiece(int(lanes[begin]), part, own_ends)


def _renamed(
    record: dict[str, Any], rename: Mapping[str, str], episode_end: Sequence[str] | None
) -> dict[str, Any]:
    """Return a schema's record with other names of fields, and other ends of episodes."""
    fields = [{**item, "name": rename.get(item["name"], item["name"])} for item in record["fields"]]
    for item in fields:
        if item.get("next_of") is not None:
            item["next_of"] = rename.get(item["next_of"], item["next_of"])
    ends = [rename.get(name, name) for name in record["episode_end"]]
    return {"fields": fields, "episode_end": ends if episode_end is None else list(episode_end)}
