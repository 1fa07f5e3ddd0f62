"""What an export has made, and the seams that all exports share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pyengine.errors import TargetExistsError
from pyengine.porting.ring_rows import RingRows


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: `rows` over all lanes, of `episodes` where the format has them.

    `notes` says what the file does not hold, or holds otherwise.
    """

    path: str
    format: str
    snapshot: str
    ring: str
    rows: int
    lanes: int
    episodes: int | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON."""
        return asdict(self)


@contextlib.contextmanager
def refusing_to_replace(path: str) -> Iterator[None]:
    """Say what can be done where there is something under the name."""
    try:
        yield
    except (FileExistsError, IsADirectoryError) as error:
        if isinstance(error, TargetExistsError):
            raise
        raise target_exists(path) from error


def target_exists(path: str) -> TargetExistsError:
    """Return the error for a name that is taken."""
    what = "is a directory" if os.path.isdir(path) else "exists"
    return TargetExistsError(
        f"{path} {what}: give another name, or force=True (--force) to replace a file or dataset",
        path=path,
    )


def dropped_note(rows: RingRows) -> tuple[str, ...]:
    """Return a note where rows of the ring are in no file."""
    if not rows.dropped_rows:
        return ()
    return (f"{rows.dropped_rows} rows had been dropped, their blocks being damaged",)
