"""How much of a file of rows is in memory at a time, on the way in and out."""

from __future__ import annotations

from collections.abc import Iterable

from pyengine.format.schema import Field

PIECE_BYTES = 4 * 1024 * 1024
"""About how much is read at a time."""


def rows_at_a_time(fields: Iterable[Field]) -> int:
    """Return how many rows with these fields make a piece; one at least."""
    return max(1, PIECE_BYTES // max(sum(one.row_bytes for one in fields), 1))
