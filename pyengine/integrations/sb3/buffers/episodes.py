"""Episodes: which rows of a hindsight replay buffer make up an episode.

The library notes start and length of the episode at each row (`ep_start`, `ep_length`), and writes
a length into all rows of an episode once it has ended. Here is one entry for each episode instead,
in row ids, which never change their meaning; both arrays are made of these entries again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import StateMismatchError
from pyengine.integrations.sb3.buffers.growing import Growing
from pyengine.integrations.sb3.buffers.rows import BufferRows


class Episodes:
    """The ended episodes of one buffer and the open one of each lane, beside its `rows`.

    `starts` and `lengths` are the library's arrays (steps, lanes), `open_starts` (lanes,) its steps
    at which the open episodes began. They are written in place by `set_state` alone.
    """

    def __init__(
        self,
        rows: BufferRows,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        open_starts: NDArray[np.int64],
    ) -> None:
        self._rows = rows
        self._starts = starts
        self._lengths = lengths
        self._open_starts = open_starts
        # (row id after the last row, rows, lane), by the first of these.
        self._ended = Growing((3,), np.int64)

    def end(self, lane: int, rows: int) -> None:
        """Note that the newest `rows` rows of `lane` are a whole episode."""
        self._ended.append((self._rows.total, rows, lane))

    def clear(self) -> None:
        """Forget all episodes: the buffer was emptied."""
        self._ended.drop_front(len(self._ended))
        for array in (self._starts, self._lengths, self._open_starts):
            array[...] = 0

    def get_state(self) -> dict[str, NDArray[np.int64]]:
        """Return the episodes that rows are left of, and the length of the open ones, by lane."""
        self._forget_old()
        opened = (self._rows.pos - self._open_starts) % self._rows.steps
        return {"ended": self._ended.items, "open": opened}

    def check_state(self, state: dict[str, NDArray[np.int64]]) -> None:
        """Raise StateMismatchError where the state is of another buffer; change nothing."""
        here, got = self._rows.lanes, len(state["open"])
        _, lengths, lanes = state["ended"].T
        fits = here == got and ((lanes >= 0) & (lanes < here)).all()
        if not fits or not ((lengths >= 0) & (lengths < self._rows.steps)).all():
            raise StateMismatchError(
                f"the snapshot's episodes are of {got} environments, here are {here} with "
                f"{self._rows.steps} rows each",
                component="replay_episodes",
                expected=here,
                got=got,
            )

    def set_state(self, state: dict[str, NDArray[np.int64]]) -> None:
        """Take it back, after the rows: an episode whose beginning is gone is no longer sampled.

        Where only the newest rows came back, an open episode begins with the oldest of them.
        """
        self.clear()
        rows = self._rows
        if rows.total == rows.origin:
            return
        self._ended.replace(state["ended"])
        self._forget_old()
        ends, lengths, lanes = self._ended.items.T
        begins = ends - lengths
        # One item for each row of each episode; `number` counts within the episode.
        number = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        ids, lane = np.repeat(begins, lengths) + number, np.repeat(lanes, lengths)
        is_whole = np.repeat(begins >= rows.oldest, lengths)
        is_here = ids >= rows.oldest
        places = (ids[is_here] - rows.origin) % rows.steps, lane[is_here]
        self._starts[places] = np.repeat((begins - rows.origin) % rows.steps, lengths)[is_here]
        self._lengths[places] = np.where(is_whole, np.repeat(lengths, lengths), 0)[is_here]
        opened = np.minimum(state["open"], rows.total - rows.oldest)
        self._open_starts[:] = (rows.pos - opened) % rows.steps
        for lane_number, count in enumerate(opened):
            steps = (rows.pos - np.arange(1, count + 1)) % rows.steps
            self._starts[steps, lane_number] = self._open_starts[lane_number]

    def _forget_old(self) -> None:
        gone = np.searchsorted(self._ended.items[:, 0], self._rows.oldest, side="right")
        self._ended.drop_front(int(gone))
