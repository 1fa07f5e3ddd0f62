from typing import Any

import numpy as np
from numpy.typing import NDArray

class OutputPool:
    """Makes the arrays of batches over memory that is used again (csrc/core/outputs.h).

    Memory goes to the pool when the last array, tensor or view of it is gone, in whatever thread
    and order, and never while there is one; no two batches alive share any. Kept are at most 32
    pieces and 256 MiB, and each for 64 batches. After `close` memory goes to the system instead.
    `array` is numpy.ndarray: this module imports no NumPy. Calls and the ends of arrays hold the
    GIL, which is the pool's lock; a forked child has a copy of its own.
    """

    def __init__(
        self,
        array: type,
        names: tuple[str, ...],
        shapes: tuple[tuple[int, ...], ...],
        dtypes: tuple[np.dtype[Any], ...],
        row_bytes: tuple[int, ...],
    ) -> None: ...
    def arrays(self, rows: int) -> dict[str, NDArray[Any]]:
        """Return an array (rows, *shape) of each field, with any content; MemoryError."""
    @property
    def idle_bytes(self) -> int:
        """Bytes that wait for the next batch."""
    @property
    def live_bytes(self) -> int:
        """Bytes that arrays have."""
    def close(self) -> None:
        """Let go of what is idle, and keep nothing any more. Idempotent."""
