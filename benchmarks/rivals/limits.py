"""What the hardware does without any library in between: contestants like the others."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rivals.replay import ReplayContestant
from benchmarks.rows import Columns, Rows

SOURCE = Path(__file__).resolve().parent.parent / "row_gather.c"


class RowGather(ReplayContestant):
    """A plain C gather of random rows, one array a field, into the same warm outputs each time."""

    def __init__(self, rows: Rows, capacity: int, directory: Path) -> None:
        super().__init__(rows, capacity, directory)
        library = directory / "row_gather.so"
        command = ["cc", "-std=c11", "-O3", "-shared", "-fPIC", str(SOURCE), "-o", str(library)]
        subprocess.run(command, check=True)
        self._gather = ctypes.CDLL(str(library)).gather_rows
        self._gather.restype = None
        self._columns = _columns(rows, capacity)
        self._outputs: Columns = {}
        self._first = 0
        self._seed = ctypes.c_uint64(1)

    def extend(self, form: Columns) -> None:
        places = np.arange(self._first, self._first + len(form["reward"])) % self.capacity
        for name, column in self._columns.items():
            column[places] = form[name]
        self._first = (int(places[-1]) + 1) % self.capacity

    def many_rows(self, rows: Columns) -> Columns:
        return rows

    def sample(self, count: int) -> Columns:
        if not self._outputs:
            self._outputs = _columns(self.rows, count)
            self._arguments = (
                _pointers(self._columns),
                _pointers(self._outputs),
                _sizes(self._columns),
                ctypes.c_size_t(len(self._columns)),
                ctypes.c_uint64(self.capacity),
                ctypes.c_size_t(count),
                ctypes.byref(self._seed),
            )
        self._gather(*self._arguments)
        return self._outputs

    def arrays(self, batch: Columns) -> Columns:
        return batch


class Memcpy(ReplayContestant):
    """One memcpy a field into the next free place of warm arrays: what `extend` cannot beat."""

    def __init__(self, rows: Rows, capacity: int, directory: Path) -> None:
        super().__init__(rows, capacity, directory)
        self._columns = _columns(rows, capacity)
        self._kept: list[Any] = []
        self._first = 0

    def many_rows(self, rows: Columns) -> tuple[int, list[tuple[int, int, int, int]]]:
        """Return rows and, for each field, target, source and bytes of a row, bytes to copy.

        The source stays alive in the block of rows; rewards are kept here.
        """
        self._kept.append(rows["reward"])
        return len(rows["reward"]), [
            (column.ctypes.data, rows[name].ctypes.data, column[0].nbytes, rows[name].nbytes)
            for name, column in self._columns.items()
        ]

    def extend(self, form: tuple[int, list[tuple[int, int, int, int]]]) -> None:
        count, parts = form
        if self._first + count > self.capacity:
            self._first = 0
        for target, source, row_bytes, size in parts:
            ctypes.memmove(target + self._first * row_bytes, source, size)
        self._first += count


def _columns(rows: Rows, count: int) -> Columns:
    """Return one array a field, every page of it touched."""
    columns = {name: np.empty((count, *shape), dtype) for name, shape, dtype in rows.fields}
    for column in columns.values():
        column.view(np.uint8).fill(1)
    return columns


def _pointers(columns: Columns) -> Any:
    return (ctypes.c_void_p * len(columns))(*(column.ctypes.data for column in columns.values()))


def _sizes(columns: Columns) -> Any:
    return (ctypes.c_size_t * len(columns))(*(column[0].nbytes for column in columns.values()))
