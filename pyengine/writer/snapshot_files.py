"""Everything that lies in a snapshot's directory before its manifest, durable and recorded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import xxhash

from pyengine.errors import SnapshotFailedError
from pyengine.format import names
from pyengine.format.descriptor import FilePlan, RingCut, SlotRange, SnapshotDescriptor
from pyengine.format.manifest import FileRecord
from pyengine.fs import durable
from pyengine.fs.stream import CHUNK_BYTES
from pyengine.shm.arena import Arena
from pyengine.writer.extents import PieceFinder, Pieces, buffer_header
from pyengine.writer.mending import mend_steps
from pyengine.writer.parts import OpenRows, PartFile, spread, write_part
from pyengine.writer.ring_view import RingView, pool_name
from pyengine.writer.segments import SegmentWriter
from pyengine.writer.session import Session
from pyengine.writer.workers import Workers

_LARGE_BYTES = 4 * 1024 * 1024
"""From here on a file is written past the page cache, and hashed by a thread of its own."""

T = TypeVar("T")

_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class _Ring:
    """One ring of the snapshot while its files are gathered."""

    view: RingView
    cut: RingCut
    finder: PieceFinder


class SnapshotFiles:
    """Gathers the files of one snapshot in `directory`; `steps` to the end, then `records`.

    `release` must be called at the end, `abandon` before it after an error: it waits for the tasks
    that still use shared memory.
    """

    def __init__(
        self,
        session: Session,
        segments: SegmentWriter,
        workers: Workers,
        descriptor: SnapshotDescriptor,
        directory: str,
    ) -> None:
        self.records: dict[str, FileRecord] = {}
        self.ring_paths: dict[str, list[str]] = {}
        self.new_bytes = 0
        self._session = session
        self._workers = workers
        self._descriptor = descriptor
        self._directory = directory
        self._directories: set[str] = set()
        self._tasks: list[Future[Any]] = []
        self._rings = [
            _Ring(ring, cut, PieceFinder(session, ring, cut, segments))
            for cut in descriptor.rings
            for ring in [_ring(session, cut.name)]
        ]

    def steps(self, staging: Arena) -> Iterator[None]:
        """Write everything but the manifest; each yield waits for an event."""
        for ring in self._rings:
            yield from self._ring_steps(ring)
        yield from self._file_steps(staging)
        self._sync_directories()

    def abandon(self) -> None:
        """Wait until no task uses the staging slot or a ring any more; drop what has not begun."""
        for task in self._tasks:
            if not task.cancel():
                task.exception()

    def release(self) -> None:
        """Let the slots of open rows be persisted again."""
        for ring in self._rings:
            ring.finder.release()

    def _ring_steps(self, ring: _Ring) -> Iterator[None]:
        yield from ring.finder.steps()
        pieces = ring.finder.result()
        base = names.ring_directory(ring.cut.name)
        self._make_directories(base)
        # First: slots that hold what is lost may be freed at any time.
        yield from mend_steps(
            self._session,
            ring.view,
            dict.fromkeys(pieces.files.values()),
            directory=os.path.join(self._directory, base),
            run=self._await,
        )
        self.ring_paths[ring.cut.name] = [ring.cut.mutable_file] if ring.cut.mutable_file else []
        parts = yield from self._part_steps(ring, base, pieces)
        ring.finder.release()
        self._link(ring, base, pieces)
        header = buffer_header(ring.cut, self._descriptor.line, pieces.files, parts).to_bytes()
        path = f"{base}/{names.BUFFER_HEADER}"
        written = durable.write_file(self._directory, path, [header])
        self._add(path, written.size_bytes, written.xxh3_64)
        self.ring_paths[ring.cut.name].append(path)
        self.new_bytes += pieces.new_rows * ring.view.schema.row_bytes

    def _part_steps(
        self, ring: _Ring, base: str, pieces: Pieces
    ) -> Generator[None, None, list[tuple[str, tuple[OpenRows, ...]]]]:
        line = int(self._descriptor.line, 16)
        directory = os.path.join(self._directory, base)
        parts = []
        for rows in spread(ring.view, pieces.open):
            part_name = names.PartName(line, ring.view.control.next_file_sequence())
            name = names.segment_link_name(part_name.text)
            task = partial(write_part, ring.view, rows, directory=directory, name=name, line=line)
            self._add_part(ring, f"{base}/{name}", (yield from self._await(task)))
            parts.append((name, rows))
        return parts

    def _add_part(self, ring: _Ring, path: str, part: PartFile) -> None:
        self.records[path] = FileRecord(path, part.size_bytes, f"{part.checksum:016x}", "segment")
        self.ring_paths[ring.cut.name].append(path)
        self._session.bytes_written += part.size_bytes

    def _link(self, ring: _Ring, base: str, pieces: Pieces) -> None:
        copied: dict[str, int] = {}
        for record in dict.fromkeys(pieces.files.values()):
            name = pool_name(record)
            path = f"{base}/{names.segment_link_name(name)}"
            target = os.path.join(self._directory, path)
            temporary = os.path.join(
                os.path.dirname(target), names.temporary_name(self._session.generation, name)
            )
            how = durable.link_or_copy(ring.view.path(name), target, temporary=temporary)
            if how != "link":
                copied[how] = copied.get(how, 0) + record[6]
            self.records[path] = FileRecord(path, record[6], f"{record[5]:016x}", "segment")
            self.ring_paths[ring.cut.name].append(path)
        for how, size_bytes in copied.items():
            self._session.warn(
                f"ring {ring.cut.name}: the file system refuses hard links; {size_bytes} bytes "
                f"of segments became a {how} in the snapshot",
                once=f"link {how}",
            )
            self._session.bytes_written += size_bytes if how == "copy" else 0

    def _file_steps(self, staging: Arena) -> Iterator[None]:
        plans = list(self._descriptor.files)
        if all(plan.path != names.META for plan in plans):
            plans.append(self._minimal_meta())
        running: list[tuple[FilePlan, Future[tuple[int, int]]]] = []
        while plans or running:
            while plans and len(running) < _IN_FLIGHT:
                plan = plans.pop(0)
                self._make_directories(os.path.dirname(plan.path))
                running.append((plan, self._start_file(plan, staging)))
            yield
            for item in [item for item in running if item[1].done()]:
                running.remove(item)
                self._add(item[0].path, *item[1].result())
                self.new_bytes += item[0].size_bytes

    def _minimal_meta(self) -> FilePlan:
        descriptor = self._descriptor
        meta = {"global_step": descriptor.global_step, "notes": descriptor.notes}
        return FilePlan(names.META, (json.dumps(meta).encode(),))

    def _start_file(self, plan: FilePlan, staging: Arena) -> Future[tuple[int, int]]:
        pieces = [
            staging.view(piece.offset, piece.length) if isinstance(piece, SlotRange) else piece
            for piece in plan.pieces
        ]
        if plan.size_bytes < _LARGE_BYTES:
            return self._submit(partial(self._write_small, plan.path, pieces))
        checksum = self._submit(partial(_hash, pieces))
        return self._submit(partial(self._write_large, plan.path, pieces, checksum))

    def _write_small(self, path: str, pieces: Sequence[bytes | memoryview]) -> tuple[int, int]:
        written = durable.write_file(self._directory, path, pieces)
        return written.size_bytes, written.xxh3_64

    def _write_large(
        self, path: str, pieces: Sequence[bytes | memoryview], checksum: Future[int]
    ) -> tuple[int, int]:
        written = durable.write_file(self._directory, path, pieces, direct=True, hashed=False)
        # Begun before this task, by another thread: never a wait for a thread that this one holds.
        return written.size_bytes, checksum.result()

    def _add(self, path: str, size_bytes: int, checksum: int) -> None:
        self.records[path] = FileRecord(path, size_bytes, f"{checksum:016x}", "all")
        self._session.bytes_written += size_bytes

    def _submit(self, task: Callable[[], T]) -> Future[T]:
        future = self._workers.submit(task)
        self._tasks.append(future)
        return future

    def _await(self, task: Callable[[], T]) -> Generator[None, None, T]:
        future = self._submit(task)
        while not future.done():
            yield
        return future.result()

    def _make_directories(self, path: str) -> None:
        """Make a directory below the snapshot; fsynced with all others at the end."""
        parts = [part for part in path.split("/") if part]
        for depth in range(1, len(parts) + 1):
            directory = "/".join(parts[:depth])
            if directory not in self._directories:
                durable.make_new_directory(os.path.join(self._directory, directory))
                self._directories.add(directory)

    def _sync_directories(self) -> None:
        """Children first: a name is durable in its directory before that one's own name is."""
        for directory in sorted(self._directories, key=lambda path: -path.count("/")):
            durable.fsync_directory(os.path.join(self._directory, directory))
        durable.fsync_directory(self._directory)


def _ring(session: Session, name: str) -> RingView:
    ring = session.rings.get(name)
    if ring is None:
        raise SnapshotFailedError(f"ring {name} was never handed to the writer")
    return ring


def _hash(pieces: Sequence[bytes | memoryview]) -> int:
    digest = xxhash.xxh3_64()
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), CHUNK_BYTES):
            digest.update(view[start : start + CHUNK_BYTES])
    return digest.intdigest()
