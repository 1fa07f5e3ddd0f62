"""The rings of a snapshot, by their buffer headers: how many rows, and which were dropped."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyengine.catalog.info import SnapshotInfo
from pyengine.errors import PyengineError
from pyengine.format import names
from pyengine.format.buffer_header import BUFFER_HEADER_MAX_BYTES, BufferHeader, DroppedRun
from pyengine.format.manifest import FileRecord
from pyengine.fs.beneath import read_beneath


@dataclass(frozen=True, slots=True)
class RingRecord:
    """What a buffer header says; `error` says why it cannot be read, with no rows then."""

    name: str
    row_count: int = 0
    dropped: tuple[DroppedRun, ...] = ()
    error: str | None = None

    @property
    def dropped_rows(self) -> int:
        """Rows that were given up, over all lanes."""
        return sum(run.row_count for run in self.dropped)


def read_buffer_header(info: SnapshotInfo, record: FileRecord) -> BufferHeader:
    """Return a buffer header that the manifest lists. DamageError, FormatVersionError, OSError."""
    data = read_beneath(info.path, record.path, limit_bytes=BUFFER_HEADER_MAX_BYTES)
    return BufferHeader.from_bytes(data, path=os.path.join(info.path, record.path))


def read_rings(info: SnapshotInfo) -> list[RingRecord]:
    """Return the snapshot's rings; never raises for what is wrong with one."""
    rings = []
    for component in info.components:
        record = info.file(f"{names.ring_directory(component.name)}/{names.BUFFER_HEADER}")
        if component.kind != "ring" or record is None:
            continue
        try:
            header = read_buffer_header(info, record)
        except (PyengineError, OSError) as error:
            rings.append(RingRecord(component.name, error=str(error)))
        else:
            rings.append(RingRecord(component.name, header.row_count, header.dropped))
    return rings
