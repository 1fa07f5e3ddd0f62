"""What a contestant that keeps a replay can be asked to do, and what most of them do alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.pending import Pending
from benchmarks.rows import Columns, Rows


class ReplayContestant:
    """A library's replay buffer of `capacity` rows, used as its documentation recommends.

    `durable` says whether a complete save is on the disk; the others' files are fsynced after the
    library calls itself done, and that time is told apart. What a library has no call for raises
    NotImplementedError: figures do not ask it, and a race leaves out who raises, with a line.
    """

    durable = False

    def __init__(self, rows: Rows, capacity: int, directory: Path) -> None:
        self.rows, self.capacity, self.directory = rows, capacity, directory

    def fill(self, first: int, count: int) -> None:
        """Put rows [first, first + count) in by the library's quickest way; never measured."""
        for chunk in self.rows.chunks(first, count):
            self.extend(self.many_rows(chunk))

    def sample(self, count: int) -> Any:
        """Return a batch of uniformly drawn rows, as a learner would get it."""
        raise NotImplementedError

    def arrays(self, batch: Any) -> Columns:
        """Return a batch's fields as arrays by our names, to be checked."""
        raise NotImplementedError

    def facts_of(self, batch: Any) -> dict[str, Any]:
        """Return what else is to be told of a first batch after a load."""
        return {}

    def one_row(self, row: Columns) -> Any:
        """Return one row (arrays with a leading axis of 1) in the form that `add` takes."""
        raise NotImplementedError

    def add(self, form: Any) -> None:
        raise NotImplementedError

    def many_rows(self, rows: Columns) -> Any:
        """Return rows in the form that `extend` takes."""
        raise NotImplementedError

    def extend(self, form: Any) -> None:
        raise NotImplementedError

    def change(self) -> None:
        """Change the model that is saved beside the replay a little."""

    def save(self, place: Path) -> Pending | None:
        """Save into the empty directory `place`; return None where that is complete already."""
        raise NotImplementedError

    def plain_twin(self) -> ReplayContestant:
        """Return an equal buffer that nothing saves: this one, where a save is all that is done."""
        return self

    def end_step(self, number: int, interval: int, place: Path) -> Pending | None:
        """End a step of training: save into `place` where `interval` divides its number."""
        return self.save(place) if number % interval == 0 else None

    def get_ready(self, place: Path) -> None:
        """Do before a load what a script does anyway; never measured."""

    def load(self, place: Path) -> None:
        """Load the replay of an earlier save into this empty buffer."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what the end of the process would not."""
