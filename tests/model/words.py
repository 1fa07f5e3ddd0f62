"""What the processes of the protocol share: words, tables, the disk; and how a word is moved."""

from __future__ import annotations

from typing import NamedTuple

ROWS = 2
"""Rows of a segment, and of the window."""

FREE, OPEN, SEALED, PERSISTING, WRITTEN, PERSISTED = range(6)
STAGING, STAGED, WRITING = range(1, 4)
NONE, PENDING, COMMITTING, COMMITTED, FAILED, CANCELLED = range(6)
TERMINAL = (NONE, COMMITTED, FAILED, CANCELLED)

FILE = -1
"""Place of a segment that lives in its pool file."""

SWAPS = ("persisting", "written", "persisted", "give back", "cancel", "commit")
"""Swaps that can be lost. From FREE and OPEN the trainer alone moves, and it may free the rest."""

RULES = (
    "held",
    "pinned",
    "claimed",
    "rows first",
    "files first",
    "staged last",
    "versions",
    "stopped first",
    "manifest first",
    "take back segment",
    "take back staging",
    "roll back",
)

Word = tuple[int, int]
"""(tag, state), moved together."""


class Broken(AssertionError):
    """An invariant does not hold."""


class Limits(NamedTuple):
    """How often things that may happen again and again do."""

    rows: int = 6
    cuts: int = 2
    writer_deaths: int = 1
    failures: int = 1
    cancels: int = 2
    trainer_dies: bool = True
    overlap: bool = False
    changes: int = 1


class State(NamedTuple):
    """Everything: shared memory, disk, and where each process is."""

    words: tuple[Word, ...]
    content: tuple[tuple[int, int], ...]  # row ids in each slot, -1: something else
    records: tuple[int, ...]  # the segment that a slot's file record names
    places: tuple[int | None, ...]  # by segment: slot, FILE, None
    total: int
    staging: Word
    staged: tuple[int, int]  # which snapshot each half of the staging slot belongs to
    snapshot: Word
    hold: tuple[int, int, int]  # sequence, tail, total
    pool: frozenset[int]  # segments that have a file
    manifests: frozenset[int]
    trainer: tuple[object, ...]
    late: tuple[object, ...]  # step, sequence, whether nothing changed since the cut
    segment_job: tuple[object, ...]
    snapshot_job: tuple[object, ...]
    writer_is_alive: bool
    next_cut: int
    writer_deaths: int
    failures: int
    cancels: int
    changes: int


IDLE: tuple[object, ...] = ("idle",)
DEAD: tuple[object, ...] = ("dead",)


def first_state(limits: Limits, slots: int = 2) -> State:
    """Return an empty ring with a writer that has just started."""
    segments = -(-limits.rows // ROWS)
    return State(
        words=((0, FREE),) * slots,
        content=((-1, -1),) * slots,
        records=(-1,) * slots,
        places=(None,) * segments,
        total=0,
        staging=(0, FREE),
        staged=(0, 0),
        snapshot=(0, NONE),
        hold=(0, 0, 0),
        pool=frozenset(),
        manifests=frozenset(),
        trainer=IDLE,
        late=IDLE,
        segment_job=IDLE,
        snapshot_job=IDLE,
        writer_is_alive=True,
        next_cut=1,
        writer_deaths=0,
        failures=0,
        cancels=0,
        changes=0,
    )


def put(items: tuple, index: int, value: object) -> tuple:
    """Return a tuple with one item exchanged."""
    return (*items[:index], value, *items[index + 1 :])


def tail_of(total: int) -> int:
    """Return the oldest valid row."""
    return max(0, total - ROWS)


def is_alive(state: State, sequence: int) -> bool:
    """Whether a snapshot is not decided yet."""
    return state.snapshot in ((sequence, PENDING), (sequence, COMMITTING))


class Machine:
    """A protocol within limits, whole or with swaps and rules of it `broken`."""

    def __init__(self, limits: Limits, broken: frozenset[str] = frozenset()) -> None:
        assert broken <= {*SWAPS, *RULES}
        self.limits = limits
        self.broken = broken

    def _swap(self, name: str, word: Word, before: Word, after: Word) -> tuple[bool, Word]:
        if word == before or name in self.broken:
            return True, after
        return False, word

    def _move_slot(
        self, state: State, name: str, slot: int, segment: int, before: int, after: int
    ) -> tuple[bool, State]:
        won, word = self._swap(name, state.words[slot], (segment, before), (segment, after))
        return won, state._replace(words=put(state.words, slot, word))
