"""Export to npz: one array a field, written piece by piece, for plain numpy.load.

Arrays have one row a transition, lane after lane, oldest first. Beside the fields ("obs/camera" of
nested ones) there are "@lane" (int32), "@end" (bool: the next row of the lane, if any, does not
continue this one) and "@pyengine", JSON text with the schema, by which an import gives the same
rows in the same kind of ring. Nothing in it needs pickle.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.events import Progress
from pyengine.format import names
from pyengine.fs.output import new_file
from pyengine.porting.departure import Exported, dropped_note, refusing_to_replace
from pyengine.porting.ring_rows import RingRows, open_ring
from pyengine.replay.plan import numpy_dtype

Array = NDArray[Any]

LANE = "@lane"
END = "@end"
ABOUT = "@pyengine"
VERSION = 1


def export_npz(
    run: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    ring: str | None = None,
    step: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write the rows of a snapshot's ring to the npz file `path`; durable on return.

    `run` is a run directory or a snapshot's; of a run the newest snapshot is read, or that of
    `step`. `ring` may be left out where there is one. Stacks are written as the observations they
    stand for, bfloat16 as uint16. Memory: some pieces of a few MiB, mutable fields, and 9 bytes for
    each extent. The run is neither claimed nor changed, each block verified before its values are
    written.

    Raises TargetExistsError where there is something at `path` (`force=True` replaces a file), and
    as pyengine.load does for what cannot be read; NoSpaceError, OSError. Nothing is left at `path`.
    """
    target = os.path.realpath(path)
    with (
        refusing_to_replace(target),
        open_ring(run, ring=ring, step=step) as rows,
        new_file(
            target,
            temporary=names.temporary_name(0, os.path.basename(target)),
            replaces=force,
        ) as file,
    ):
        count = rows.count()
        _Writer(rows, count, file, progress).write()
        return Exported(
            path=target,
            format="npz",
            snapshot=rows.info.path,
            ring=rows.name,
            rows=count,
            lanes=rows.num_lanes,
            episodes=None,
            notes=dropped_note(rows),
        )


class _Writer:
    """One pass over the ring for each member of the archive."""

    def __init__(
        self, rows: RingRows, count: int, file: io.RawIOBase, progress: Progress | None
    ) -> None:
        self._rows = rows
        self._count = count
        self._file = file
        self._progress = progress
        self._done = 0

    def write(self) -> None:
        """Write the archive."""
        buffered: Any = self._file
        with zipfile.ZipFile(buffered, "w", zipfile.ZIP_STORED) as archive:
            for name, field in self._rows.schema.items():
                self._member(archive, name, field.shape, numpy_dtype(field), self._field(name))
            self._member(archive, LANE, (), np.dtype(np.int32), self._lanes())
            self._member(archive, END, (), np.dtype(bool), ends(self._rows))
            text = np.array(json.dumps(self._about()))
            with archive.open(_info(ABOUT), "w") as member:
                np.lib.format.write_array(member, text)

    def _member(
        self,
        archive: zipfile.ZipFile,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        values: Iterator[Array],
    ) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": (self._count, *shape),
        }
        in_all = self._count * (len(self._rows.schema) + 2)
        with archive.open(_info(name), "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, header)
            for part in values:
                member.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
                self._done += len(part)
                if self._progress is not None:
                    self._progress(self._done, in_all)

    def _field(self, name: str) -> Iterator[Array]:
        for piece in self._rows.pieces((name,)):
            yield piece.rows[name]

    def _lanes(self) -> Iterator[Array]:
        for piece in self._rows.pieces(()):
            yield np.full(len(piece.starts), piece.lane, np.int32)

    def _about(self) -> dict[str, Any]:
        header = self._rows.header
        priorities = header.priorities
        return {
            "version": VERSION,
            "schema": header.schema,
            "capacity": header.capacity,
            "num_lanes": header.num_lanes,
            "global_step": self._rows.info.global_step,
            "run_id": self._rows.info.run_id,
            "snapshot": self._rows.info.name,
            "priorities": None
            if priorities is None
            else {"alpha": priorities.alpha, "epsilon": priorities.epsilon},
        }


def ends(rows: RingRows) -> Iterator[Array]:
    """Yield for each row whether the next one of its lane does not continue it: of the newest row
    of a lane, whether an episode ended with it."""
    lane = -1
    for piece in rows.pieces(()):
        starts = piece.starts
        if piece.lane == lane:
            yield starts
        else:
            if lane >= 0:
                yield np.array([rows.header.lanes[lane].break_pending], bool)
            yield starts[1:].copy()
            lane = piece.lane
    if lane >= 0:
        yield np.array([rows.header.lanes[lane].break_pending], bool)


def _info(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(f"{name}.npy")
