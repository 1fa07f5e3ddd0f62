"""Bringing one ring back: its header decides, its full segments stay files.

In steps, so that a restore can stop before anything live has changed: `prepare` puts the rows into
storage of their own, beside `adopt`, which gives the files names under the new line; `settle` is
when both have ended; `exchange` gives the storage to the ring.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyengine.capture.files import damage_in
from pyengine.capture.tensorfile import TensorFile
from pyengine.catalog import pool
from pyengine.catalog.commit_lock import CommitLock
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.later_rows import LaterRows
from pyengine.engine.report import ComponentReport
from pyengine.errors import DamageError
from pyengine.format.buffer_header import BufferHeader
from pyengine.format.names import BUFFER_HEADER, ring_directory
from pyengine.replay.install import PreparedRing
from pyengine.replay.plan import numpy_dtype
from pyengine.replay.segment_files import SegmentFile

if TYPE_CHECKING:
    from pyengine.engine.restore import RestoreOptions
    from pyengine.replay.ring import ReplayBuffer


def is_replay_segment(info: SnapshotInfo, path: str) -> bool:
    """Whether a file of a snapshot holds replay rows, to be verified block by block."""
    record = info.file(path)
    return record is not None and record.covers == "segment"


class RingRestore:
    """One ring on its way back; owns what it prepared until the ring has it.

    Made by `read_ring`, which has checked that it fits.
    """

    def __init__(
        self,
        name: str,
        ring: ReplayBuffer,
        info: SnapshotInfo,
        header: BufferHeader,
        mutable: dict[str, Any],
    ) -> None:
        self._name = name
        self._ring = ring
        self._header = header
        self._mutable = mutable
        self._info = info
        self._size_bytes = sum(
            record.size_bytes
            for record in info.files
            if record.path.startswith(f"{ring_directory(name)}/")
        )
        self._line = 0
        self._names: dict[str, pool.Adoption] = {}
        self._files: dict[str, SegmentFile] = {}
        self._are_moved = False
        self._prepared: PreparedRing | None = None
        self._later: LaterRows | None = None

    @property
    def header(self) -> BufferHeader:
        """What is put back: the snapshot's buffer header, and rows added after it (`extend`)."""
        return self._header

    @property
    def start_rows(self) -> list[int]:
        """The next row id of every lane."""
        return [lane.total_count for lane in self._header.lanes]

    def extend(self, later: LaterRows) -> None:
        """Put back the rows too that were added after the snapshot (`replay="latest"`).

        Their mutable fields are not on disk: they get the fields' defaults, or as priority what a
        new row would have got.
        """
        former, self._header, self._later = self._header, later.header, later
        window = former.capacity // former.num_lanes
        for name, value in self._ring.unsaved_values(former).items():
            if name not in self._mutable:
                continue  # in no row
            array = self._mutable[name] = np.array(self._mutable[name])
            for index, (old, new) in enumerate(zip(former.lanes, later.header.lanes, strict=True)):
                rows = np.arange(max(old.total_count, new.tail), new.total_count)
                array[index * window + rows % window] = value

    def plan(self, run_dir: str, line: int) -> None:
        """Lay down where the files lie, and what the new line will call them. Reads nothing."""
        later = self._later.files if self._later is not None else {}
        replaced = self._later.replaced if self._later is not None else ()
        own = tuple(extent for extent in self._header.extents if extent.file not in later)
        # The line is new, so that its file numbers begin anew; later files come first.
        self._names = pool.plan_adoption(
            run_dir,
            self._info,
            replace(self._header, extents=own),
            line=line,
            first_sequence=1 + len(later),
        )
        self._line = line
        for file in {extent.file for extent in (*own, *replaced)}:
            self._files[file] = self._segment_file(file)

    def adopt(self, held: CommitLock) -> list[str]:
        """Give the full segment files their names in the pool; return the directories that are to
        be made durable."""
        if self._later is not None:
            files = self._later.files
            adopted = pool.adopt_later(held, self._header, files.values(), self._line)
            for file, (path, record) in adopted.items():
                self._files[file] = SegmentFile(path, files[file].checksum, record)
        for file in pool.adopt_files(held, self._name, self._names):
            self._are_moved = True
            self._files[file] = replace(self._files[file], path=self._names[file].target)
        return [pool.pool_directory(held.run_dir, self._name)]

    def prepare(self, options: RestoreOptions, *, keep_breaks: bool) -> None:
        """Map and check the full segments, copy the open rows; eagerly, verify every block. Beside
        `adopt`, where the files stay what they are."""
        if self._later is None:
            self._prepare(options, keep_breaks=keep_breaks)

    def settle(self, options: RestoreOptions, *, keep_breaks: bool) -> None:
        """Prepare, after `adopt`, what has only now got the files that it will live in."""
        if self._later is not None or self._are_moved:
            self.close()
            self._prepare(options, keep_breaks=keep_breaks)

    def _prepare(self, options: RestoreOptions, *, keep_breaks: bool) -> None:
        self._prepared = self._ring.prepare(
            self._header,
            dict(self._files),
            self._mutable,
            line=self._line,
            eager=options.eager,
            replay_last=options.replay_last,
            keep_breaks=keep_breaks,
            on_damage=options.on_damage,
            replaced=() if self._later is None else self._later.replaced,
        )
        if not options.eager:
            self._prepared.verify_first_batch()
        if self._later is not None:
            # Numbers that adopted parts have are not given to others.
            control = self._prepared.storage.control
            while control.next_file_sequence() < len(self._later.files):
                pass

    def exchange(self, options: RestoreOptions) -> ComponentReport:
        """Put the prepared rows into the ring."""
        assert self._prepared is not None
        notes = [] if options.replay_last is None else [f"replay_last={options.replay_last}"]
        if self._later is not None:
            notes.append(f"{self._later.added} rows added after the snapshot")
        dropped = self._prepared.storage.core.dropped_rows
        notes += [f"{dropped} rows are dropped"] if dropped else []
        notes += self._ring.compare_settings(self._header)
        notes += _given_up(self._ring)
        self._ring.exchange(self._prepared)
        rows, note = self._prepared.rows, "; ".join(notes)
        return ComponentReport(self._name, "ring", "restored", self._size_bytes, rows, note)

    def install_sampler(self) -> None:
        """Set the ring's own generator, after every user callable has run."""
        if self._prepared is not None:
            self._prepared.install_sampler()

    def close(self) -> None:
        """Let go of what the ring did not get. Idempotent."""
        if self._prepared is not None:
            self._prepared.close()

    def _segment_file(self, file: str) -> SegmentFile:
        """Return where a file of the header lies: the snapshot's own link, which an error is to
        name, because moving that directory away is the remedy."""
        path = f"{ring_directory(self._name)}/{file}"
        shown = os.path.join(self._info.path, path)
        listed = self._info.file(path)
        if listed is None:
            raise DamageError(f"{shown}: the manifest does not list this file", path=shown)
        adoption = self._names.get(file)
        record = None if adoption is None else adoption.record
        return SegmentFile(shown, int(listed.xxh3_64, 16), record)


class RingSkip:
    """One ring that starts empty although rows of it were saved (`replay="skip"`)."""

    def __init__(self, name: str, ring: ReplayBuffer) -> None:
        self._name = name
        self._ring = ring
        self._line = 0
        self._prepared: PreparedRing | None = None

    @property
    def start_rows(self) -> list[int]:
        """The next row id of every lane."""
        return [0] * self._ring.num_envs

    def plan(self, run_dir: str, line: int) -> None:
        """Nothing of the snapshot is used."""
        self._line = line

    def adopt(self, held: CommitLock) -> list[str]:
        """Nothing of the snapshot is used."""
        return []

    def prepare(self, options: RestoreOptions, *, keep_breaks: bool) -> None:
        """Make empty storage where the ring has rows; one without storage stays without."""
        if self._ring.storage is not None:
            self._prepared = self._ring.prepare_empty(line=self._line)

    def settle(self, options: RestoreOptions, *, keep_breaks: bool) -> None:
        """No files were waited for."""

    def exchange(self, options: RestoreOptions) -> ComponentReport:
        """Empty the ring."""
        note = "; ".join(['replay="skip": starts empty', *_given_up(self._ring)])
        if self._prepared is not None:
            self._ring.exchange(self._prepared)
        return ComponentReport(self._name, "ring", "skipped", rows=0, note=note)

    def install_sampler(self) -> None:
        """The ring keeps the generator that it was made with."""

    def close(self) -> None:
        """Let go of what the ring did not get. Idempotent."""
        if self._prepared is not None:
            self._prepared.close()


def _given_up(ring: ReplayBuffer) -> list[str]:
    """Return a line about rows that the ring holds already and that a restore replaces."""
    return [f"{len(ring)} rows that it held before are gone"] if len(ring) else []


def read_ring(
    name: str, ring: ReplayBuffer, info: SnapshotInfo, files: Mapping[str, Any]
) -> RingRestore:
    """Read a ring's header and mutable fields and check that they fit the live ring.

    Raises DamageError, StateMismatchError; nothing has changed.
    """
    directory = ring_directory(name)
    path = f"{directory}/{BUFFER_HEADER}"
    if path not in files:
        raise DamageError(f"{info.path}: {path} is not listed", path=os.path.join(info.path, path))
    header = BufferHeader.from_bytes(bytes(files[path]), path=os.path.join(info.path, path))
    mutable: dict[str, Any] = {}
    if header.mutable_file is not None:
        path = f"{directory}/{header.mutable_file}"
        if path not in files:
            shown = os.path.join(info.path, directory, BUFFER_HEADER)
            raise DamageError(
                f"{shown}: its file {header.mutable_file!r:.100} is not listed", path=shown
            )
        tensors = TensorFile(files[path], os.path.join(info.path, path))
        mutable = {field: tensors.array(field) for field in tensors.names}
    shown = os.path.join(info.path, path)
    with damage_in(os.path.join(info.path, f"{directory}/{BUFFER_HEADER}")):
        ring.check_restorable(header)
    saved = {item["name"] for item in header.schema["fields"]}
    for field_name, field in ring.schema.mutable_fields.items():
        array, shape = mutable.get(field_name), (header.capacity, *field.shape)
        if array is None and field_name not in saved:
            continue  # the ring has a value for fields that were not saved
        if array is None or (array.shape, array.dtype) != (shape, numpy_dtype(field)):
            raise DamageError(f"{shown}: no mutable field {field_name!r} of {shape}", path=shown)
    return RingRestore(name, ring, info, header, mutable)
