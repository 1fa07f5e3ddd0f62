"""Rows of a ring as a snapshot holds them, read a piece at a time, without claiming the run.

Files are read, never mapped: what is in memory at a time is a piece, and not what the kernel keeps
of a mapping. Every block is hashed before values of it are given. Mutable fields, which lie in one
small file, are read whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from pyengine.capture.tensorfile import TensorFile
from pyengine.catalog.branch import choose_step
from pyengine.catalog.commit import hold_snapshot
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.rings import read_buffer_header
from pyengine.catalog.run import choose_snapshot
from pyengine.catalog.snapshot_files import read_files
from pyengine.catalog.verify import holds_extent, prove_frame
from pyengine.errors import ComponentMismatchError, ConfigError, DamageError
from pyengine.format import names
from pyengine.format.buffer_header import BufferHeader, Extent
from pyengine.format.frame import read_into
from pyengine.format.schema import START_FIELD, Schema
from pyengine.format.segment import FieldRegion, SegmentHeader
from pyengine.fs import door
from pyengine.fs.beneath import check_size, drop_cache, open_beneath
from pyengine.porting.pieces import rows_at_a_time
from pyengine.porting.sequences import Piece, Sequences
from pyengine.replay.plan import numpy_dtype

Array = NDArray[Any]

_ATTEMPTS = 5


@contextlib.contextmanager
def open_ring(
    run: str | os.PathLike[str], *, ring: str | None = None, step: int | None = None
) -> Iterator[RingRows]:
    """Give the rows of one ring of a snapshot, which is held against pruning meanwhile.

    `run` is a run directory (its newest snapshot, or with `step` the newest of that step) or a
    snapshot's own; `ring` may be left out where there is one. Claims and writes nothing. Raises
    RunDirectoryError, ComponentMismatchError (no such ring), ConfigError (several, and none was
    named), DamageError, FormatVersionError, OSError.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        info = _choose(run, step)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold_snapshot(info.path) or contextlib.nullcontext())
            except FileNotFoundError:
                if attempt == _ATTEMPTS:
                    raise
                continue  # pruned since we looked
            rows = RingRows(info, _choose_ring(info, ring))
            stack.callback(rows.close)
            yield rows
            return


def _choose(run: str | os.PathLike[str], step: int | None) -> SnapshotInfo:
    path = os.fspath(run)
    return choose_snapshot(path) if step is None else choose_step(path, step)[0]


def _choose_ring(info: SnapshotInfo, wanted: str | None) -> str:
    rings = [one.name for one in info.components if one.kind == "ring" and one.status == "saved"]
    if wanted is None and len(rings) > 1:
        shown = ", ".join(map(repr, rings))
        raise ConfigError(
            f"{info.name} holds the rings {shown}: say which", field="ring", expected=rings
        )
    if not rings or (wanted is not None and wanted not in rings):
        what = "no ring" if wanted is None else f"no ring {wanted!r}"
        there = f"it holds {', '.join(map(repr, rings))}" if rings else "it holds none"
        missing = () if wanted is None else (wanted,)
        raise ComponentMismatchError(
            f"{info.path} holds {what}; {there}", not_tracked=(), not_saved=missing
        )
    return wanted or rings[0]


@dataclass(slots=True)
class _OpenFile:
    """A segment file whose frame is proven."""

    path: str
    fd: int
    header: SegmentHeader
    hashes: tuple[int, ...]

    def region(self, name: str) -> FieldRegion:
        for field in self.header.fields:
            if field.name == name:
                return field
        raise DamageError(f"{self.path}: it has no field {name!r}", path=self.path)


class RingRows:
    """Valid rows of one ring, lane by lane, oldest first. Owned by `open_ring`."""

    def __init__(self, info: SnapshotInfo, name: str) -> None:
        self.info = info
        self.name = name
        self._directory = names.ring_directory(name)
        path = f"{self._directory}/{names.BUFFER_HEADER}"
        record = info.file(path)
        if record is None:
            shown = os.path.join(info.path, path)
            raise DamageError(f"{shown}: the manifest does not list this file", path=shown)
        self.header: BufferHeader = read_buffer_header(info, record)
        self.schema = Schema.from_record(self.header.schema)
        self.extents: list[list[Extent]] = [[] for _ in range(self.header.num_lanes)]
        for extent in sorted(self.header.extents, key=lambda one: (one.lane, one.first_row)):
            self.extents[extent.lane].append(extent)
        self._sequences = Sequences(self.schema)
        self._open: _OpenFile | None = None
        self._mutable: dict[str, Array] | None = None

    @property
    def num_lanes(self) -> int:
        """How many lanes the ring has."""
        return self.header.num_lanes

    @property
    def dropped_rows(self) -> int:
        """Rows that the ring has given up, which are in no file."""
        return sum(run.row_count for run in self.header.dropped)

    def count(self) -> int:
        """Return how many rows `pieces` gives; of a ring with stacks by reading where they begin,
        for opening rows are none."""
        if not self.schema.stacks:
            return self.header.row_count
        return sum(len(piece.starts) for piece in self.pieces(()))

    def pieces(self, fields: Sequence[str]) -> Iterator[Piece]:
        """Yield all rows with these fields of the schema, a few MiB at a time.

        Stacks are made of their frames. Raises DamageError that names file and block.
        """
        stored = self._stored(fields)
        starts = self.schema.append_fields[START_FIELD]
        count = rows_at_a_time([*(self.schema[name] for name in fields), starts])
        for lane, extents in enumerate(self.extents):
            self._sequences.begin_lane(lane)
            for extent in extents:
                for done in range(0, extent.row_count, count):
                    first = extent.first_row + done
                    many = min(count, extent.row_count - done)
                    at = extent.file_row + done
                    raw = {name: self._read(extent, name, at, many) for name in stored}
                    piece = self._sequences.piece(first, raw, fields)
                    if len(piece.starts):
                        self._add_mutable(piece, fields)
                        yield piece

    def _stored(self, fields: Sequence[str]) -> list[str]:
        """Return which fields of the files are read for these."""
        pairs = {pair.obs: pair.next_obs for pair in self.schema.stacks}
        stored = dict.fromkeys(pairs.get(name, name) for name in fields)
        return [*(name for name in stored if name in self.schema.append_fields), START_FIELD]

    def _add_mutable(self, piece: Piece, fields: Sequence[str]) -> None:
        wanted = [name for name in fields if self.schema[name].mutable]
        if not wanted:
            return
        mutable = self._read_mutable()
        per_lane = self.header.capacity // self.num_lanes
        places = piece.lane * per_lane + piece.row_ids % per_lane
        for name in wanted:
            piece.rows[name] = mutable[name][places]

    def _read_mutable(self) -> dict[str, Array]:
        if self._mutable is None:
            file = f"{self._directory}/{self.header.mutable_file}"
            shown = os.path.join(self.info.path, file)
            tensors = TensorFile(read_files(self.info, [file])[file], shown)
            found = {name: tensors.array(name) for name in self.schema.mutable_fields}
            for name, field in self.schema.mutable_fields.items():
                shape = (self.header.capacity, *field.shape)
                if (found[name].shape, found[name].dtype) != (shape, numpy_dtype(field)):
                    raise DamageError(f"{shown}: no field {name!r} of {shape}", path=shown)
            self._mutable = found
        return self._mutable

    def _read(self, extent: Extent, name: str, first: int, count: int) -> Array:
        """Return rows [first, first + count) of the file that an extent lies in, verified."""
        file = self._file(extent)
        region = file.region(name)
        kept = self.schema.append_fields[name]
        if (region.dtype, region.shape) != (kept.dtype, kept.shape):
            raise DamageError(
                f"{file.path}: field {name!r} is {region.dtype}{list(region.shape)}, the buffer "
                f"header says {kept.dtype}{list(kept.shape)}",
                path=file.path,
            )
        try:
            data, skipped = _read_blocks(file, region, first, count)
        except DamageError:
            drop_cache(file.fd)
            data, skipped = _read_blocks(file, region, first, count)
        values = np.frombuffer(data, numpy_dtype(kept), count * prod(kept.shape), skipped)
        return values.reshape(count, *kept.shape)

    def _file(self, extent: Extent) -> _OpenFile:
        path = f"{self._directory}/{extent.file}"
        shown = os.path.join(self.info.path, path)
        if self._open is None or self._open.path != shown:
            self.close()
            record = self.info.file(path)
            if record is None:
                raise DamageError(f"{shown}: the manifest does not list this file", path=shown)
            try:
                fd = open_beneath(self.info.path, path)
            except FileNotFoundError as error:
                raise DamageError(f"{shown} is missing", path=shown) from error
            try:
                check_size(shown, os.fstat(fd).st_size, record.size_bytes)
                try:
                    header, hashes = prove_frame(fd, record, shown)
                except DamageError:
                    drop_cache(fd)
                    header, hashes = prove_frame(fd, record, shown)
            except BaseException:
                door.active.close(fd)
                raise
            self._open = _OpenFile(shown, fd, header, hashes)
        if not holds_extent(self._open.header, extent):
            raise DamageError(
                f"{shown} does not hold rows {extent.first_row} to "
                f"{extent.first_row + extent.row_count} of lane {extent.lane}",
                path=shown,
            )
        return self._open

    def close(self) -> None:
        """Let go of the file that is open. Idempotent."""
        if self._open is not None:
            fd, self._open = self._open.fd, None
            door.active.close(fd)


def _read_blocks(
    file: _OpenFile, region: FieldRegion, first: int, count: int
) -> tuple[bytearray, int]:
    """Return the blocks that rows lie in, hashed, and where in them the first row begins."""
    step = region.row_bytes << region.block_shift
    blocks = range(first >> region.block_shift, (first + count - 1 >> region.block_shift) + 1)
    begin = blocks.start * step
    is_last = blocks.stop == region.block_count
    end = region.region_bytes if is_last else blocks.stop * step
    data = bytearray(end - begin)
    with memoryview(data) as view:
        read_into(file.fd, view, region.offset + begin, file.path)
        for block in blocks:
            at = block * step - begin
            stop = len(data) if block == region.block_count - 1 else at + step
            expected = file.hashes[region.first_block + block]
            got = xxhash.xxh3_64_intdigest(view[at:stop])
            if got != expected:
                offset = region.offset + block * step
                raise DamageError(
                    f"{file.path}: block {region.first_block + block}, from byte {offset} on, has "
                    f"the checksum {got:016x}, its table says {expected:016x}",
                    path=file.path,
                    offset=offset,
                    expected=f"{expected:016x}",
                    got=f"{got:016x}",
                )
    return data, first * region.row_bytes - begin
