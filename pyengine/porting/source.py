"""What an importer finds in a file: a schema, how many rows each lane has, the rows in pieces."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import DamageError, PyengineError, SourceFormatError
from pyengine.format.schema import Schema
from pyengine.fs.beneath import open_regular

Array = NDArray[Any]

EPISODE_END = ("terminated", "truncated")


@dataclass(frozen=True, slots=True)
class SourcePiece:
    """Consecutive rows of a lane, by flat name; `ends` where the next one does not continue it."""

    lane: int
    rows: dict[str, Array]
    ends: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """What a source holds. `lane_rows` counts rows lane by lane.

    `capacity` is that of the ring which the rows come from, if it is known, and `priorities` (alpha
    and epsilon) how that one drew by priority, if it did. `notes` says what is left out, or read
    otherwise than it is written.
    """

    format: str
    path: str
    schema: Schema
    lane_rows: tuple[int, ...]
    capacity: int | None = None
    priorities: dict[str, float] | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def rows(self) -> int:
        """Rows over all lanes."""
        return sum(self.lane_rows)


class RowSource(Protocol):
    """A file that is open for reading rows."""

    @property
    def contents(self) -> Contents:
        """What it holds."""

    def pieces(self) -> Iterator[SourcePiece]:
        """Yield all rows, each lane's oldest first. SourceFormatError where they cannot be read."""


def open_source(path: str, what: str) -> int:
    """Open a file that was named by the user, links followed, and return its descriptor.

    SourceFormatError: it is a directory, or what else is no file. FileNotFoundError, OSError.
    """
    try:
        return open_regular(os.path.realpath(path))[0]
    except DamageError as error:
        found = "a directory" if os.path.isdir(path) else "no regular file"
        raise SourceFormatError(f"{path} is {found}, not {what}", path=path) from error


@contextlib.contextmanager
def reading(path: str, what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn what a library raises for bytes that it cannot read into SourceFormatError."""
    try:
        yield
    except PyengineError:
        raise
    except kinds as error:
        raise SourceFormatError(
            f"{path} cannot be read as {what}: {type(error).__name__}: {error}", path=path
        ) from error
