"""The shared-memory protocol as a transition system, small enough to be explored completely.

One lane, segments of two rows, a window of two rows, two segment slots, one staging slot: a slot
is reused after three segments, a staging slot by the second snapshot. Three processes take their
steps in any order: the trainer (append, seal, age out, cut, cancel, die), the writer's segment job
and its snapshot job, which die together and are started again. A process that is slow or frozen is
one that takes no step.

A step is what other processes can see as one: a swap, a store, the copy of one row or of one half
of a staging slot. Each swap has a name; a name in `broken` turns it into a plain store, which
succeeds whatever the word holds, and other names leave a rule out.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    "staged last",
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
    segment_job: tuple[object, ...]
    snapshot_job: tuple[object, ...]
    writer_is_alive: bool
    next_cut: int
    writer_deaths: int
    failures: int
    cancels: int


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
        segment_job=IDLE,
        snapshot_job=IDLE,
        writer_is_alive=True,
        next_cut=1,
        writer_deaths=0,
        failures=0,
        cancels=0,
    )


def put(items: tuple, index: int, value: object) -> tuple:
    """Return a tuple with one item exchanged."""
    return (*items[:index], value, *items[index + 1 :])


def tail_of(total: int) -> int:
    """Return the oldest valid row."""
    return max(0, total - ROWS)


class Protocol:
    """The steps that are possible in a state; `check` says what must hold in each."""

    def __init__(self, limits: Limits, broken: frozenset[str] = frozenset()) -> None:
        assert broken <= {*SWAPS, *RULES}
        self.limits = limits
        self.broken = broken

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield (name, next state) of all steps."""
        if state.trainer != DEAD:
            yield from self._trainer(state)
            if self.limits.trainer_dies:
                yield "trainer: dies", state._replace(trainer=DEAD)
            if not state.writer_is_alive:
                yield "trainer: starts a writer", self._restart(state)
        if state.writer_is_alive:
            yield from self._segment_job(state)
            yield from self._snapshot_job(state)
            if state.trainer == DEAD:
                yield from self._after_death(state)
            if state.writer_deaths < self.limits.writer_deaths:
                yield (
                    "writer: dies",
                    state._replace(
                        writer_is_alive=False,
                        writer_deaths=state.writer_deaths + 1,
                        segment_job=IDLE,
                        snapshot_job=IDLE,
                    ),
                )

    def _swap(self, name: str, word: Word, before: Word, after: Word) -> tuple[bool, Word]:
        if word == before or name in self.broken:
            return True, after
        return False, word

    def _move_slot(
        self, state: State, name: str, slot: int, segment: int, before: int, after: int
    ) -> tuple[bool, State]:
        won, word = self._swap(name, state.words[slot], (segment, before), (segment, after))
        return won, state._replace(words=put(state.words, slot, word))

    # -- the trainer ---------------------------------------------------------------------------

    def _is_held(self, state: State, segment: int) -> bool:
        sequence, tail, total = state.hold
        tag, fate = state.snapshot
        return (
            "held" not in self.broken
            and (tag, fate) in ((sequence, PENDING), (sequence, COMMITTING))
            and tail < (segment + 1) * ROWS
            and total > segment * ROWS
        )

    def _trainer(self, state: State) -> Iterator[tuple[str, State]]:
        kind, *at = state.trainer
        if kind == "idle":
            yield from self._idle_trainer(state)
        elif kind == "append":
            yield from self._append(state, str(at[0]))
        elif kind == "open":
            slot = int(str(at[0]))
            segment = state.total // ROWS
            if state.words[slot] != (0, FREE):
                raise Broken("somebody else moved a FREE slot")
            yield (
                "trainer: opens a segment",
                state._replace(
                    words=put(state.words, slot, (segment, OPEN)),
                    places=put(state.places, segment, slot),
                    trainer=("append", "write"),
                ),
            )
        elif kind == "free":
            slot = int(str(at[0]))
            freed = state._replace(words=put(state.words, slot, (0, FREE)), trainer=IDLE)
            yield "trainer: frees a slot", freed
        elif kind == "cut":
            yield from self._cut(state, str(at[0]))

    def _idle_trainer(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._age_out(state)
        if state.total < self.limits.rows:
            if state.total % ROWS:
                yield "trainer: appends", state._replace(trainer=("append", "write"))
            else:
                for slot, word in enumerate(state.words):
                    if word[1] == FREE:
                        # The header is written before the slot is OPEN.
                        yield (
                            "trainer: prepares a slot",
                            state._replace(
                                content=put(state.content, slot, (-1, -1)), trainer=("open", slot)
                            ),
                        )
                        break
        tag, fate = state.snapshot
        if fate == PENDING and state.cancels < self.limits.cancels:
            _, word = self._swap("cancel", state.snapshot, (tag, PENDING), (tag, CANCELLED))
            yield (
                "trainer: cancels",
                state._replace(snapshot=word, cancels=state.cancels + 1),
            )
        if "cancel" in self.broken and fate == COMMITTING and state.cancels < self.limits.cancels:
            cancelled = state._replace(snapshot=(tag, CANCELLED), cancels=state.cancels + 1)
            yield "trainer: cancels late", cancelled
        may_claim = state.staging[1] == FREE or "claimed" in self.broken
        if state.next_cut <= self.limits.cuts and may_claim:
            claimed = state._replace(
                staging=(state.next_cut, STAGING),
                next_cut=state.next_cut + 1,
                trainer=("cut", "fill first"),
            )
            yield "trainer: claims the staging slot", claimed

    def _append(self, state: State, step: str) -> Iterator[tuple[str, State]]:
        segment, row = divmod(state.total, ROWS)
        if step == "write" and "rows first" not in self.broken:
            written = self._write_row(state, state.total, ("append", "publish"))
            yield "trainer: writes a row", written
        elif step == "write":  # the count first
            yield (
                "trainer: publishes too early",
                state._replace(total=state.total + 1, trainer=("append", "write late")),
            )
        elif step == "write late":
            done = self._write_row(state, state.total - 1, IDLE)
            last = (state.total - 1) % ROWS == ROWS - 1
            yield (
                "trainer: writes late",
                done._replace(trainer=("append", "seal") if last else IDLE),
            )
        elif step == "publish":
            after = ("append", "seal") if row == ROWS - 1 else IDLE
            yield "trainer: publishes", state._replace(total=state.total + 1, trainer=after)
        elif step == "seal":
            segment = (state.total - 1) // ROWS
            place = state.places[segment]
            assert place is not None
            if state.words[place] != (segment, OPEN):
                raise Broken("somebody else moved an OPEN slot")
            words = put(state.words, place, (segment, SEALED))
            yield "trainer: seals", state._replace(words=words, trainer=IDLE)

    def _write_row(self, state: State, row: int, after: tuple[object, ...]) -> State:
        place = state.places[row // ROWS]
        assert place is not None
        rows = put(state.content[place], row % ROWS, row)
        return state._replace(content=put(state.content, place, rows), trainer=after)

    def _age_out(self, state: State) -> Iterator[tuple[str, State]]:
        for segment, place in enumerate(state.places):
            if place is None or place == FILE or (segment + 1) * ROWS > tail_of(state.total):
                continue
            tag, slot_state = state.words[place]
            if tag != segment or slot_state in (FREE, OPEN):
                raise Broken(f"segment {segment} is in use and its slot is not its own")
            if not self._is_held(state, segment):
                after: int | None = None
            elif slot_state == PERSISTED:
                if state.records[place] != segment or segment not in state.pool:
                    raise Broken("PERSISTED, and the record names no file of the segment")
                after = FILE
            else:
                continue  # the writer is not through with it
            yield (
                "trainer: lets a segment go",
                state._replace(places=put(state.places, segment, after), trainer=("free", place)),
            )

    def _cut(self, state: State, step: str) -> Iterator[tuple[str, State]]:
        sequence = state.staging[0]
        if step == "fill first":
            early = "staged last" in self.broken
            filled = state._replace(staged=(sequence, state.staged[1]))
            yield (
                "trainer: fills the first half",
                filled._replace(trainer=("cut", "begin" if early else "fill second")),
            )
            yield (
                "trainer: gives a claim up",
                state._replace(staging=(sequence, FREE), trainer=IDLE),
            )
        elif step == "fill second":
            filled = state._replace(staged=(state.staged[0], sequence))
            yield "trainer: fills the second half", filled._replace(trainer=("cut", "begin"))
        elif step == "begin":
            # A store: nobody else moves the word while the slot is STAGING.
            if state.snapshot[1] not in TERMINAL and "claimed" not in self.broken:
                raise Broken("a snapshot begins over one that is not decided")
            begun = state._replace(
                snapshot=(sequence, PENDING),
                hold=(sequence, tail_of(state.total), state.total),
                trainer=("cut", "publish"),
            )
            yield "trainer: PENDING", begun
        elif step == "publish":
            after = ("cut", "fill late") if "staged last" in self.broken else IDLE
            yield "trainer: STAGED", state._replace(staging=(sequence, STAGED), trainer=after)
            yield (
                "trainer: the cut raises",
                state._replace(snapshot=(sequence, CANCELLED), trainer=("cut", "undo")),
            )
        elif step == "undo":
            yield "trainer: frees the claim", state._replace(staging=(sequence, FREE), trainer=IDLE)
        elif step == "fill late":
            late = state._replace(staged=(state.staged[0], sequence), trainer=IDLE)
            yield "trainer: fills late", late

    # -- the writer ----------------------------------------------------------------------------

    def _restart(self, state: State) -> State:
        """A new writer's first act, before the trainer's next; nothing of the old one runs."""
        words = []
        for tag, slot_state in state.words:
            back = slot_state in (PERSISTING, WRITTEN) and "take back segment" not in self.broken
            words.append((tag, SEALED) if back else (tag, slot_state))
        sequence, staging = state.staging
        if staging == WRITING and "take back staging" not in self.broken:
            staging = STAGED
        return state._replace(words=tuple(words), staging=(sequence, staging), writer_is_alive=True)

    def _segment_job(self, state: State) -> Iterator[tuple[str, State]]:
        kind, *at = state.segment_job
        if kind == "idle":
            for slot, (segment, slot_state) in enumerate(state.words):
                if slot_state == SEALED and slot not in self._pinned(state):
                    job = ("begin", slot, segment, -1, -1)
                    yield "writer: sees a sealed segment", state._replace(segment_job=job)
            return
        slot, segment, first, second = (int(str(value)) for value in at)
        if kind == "begin":
            won, moved = self._move_slot(state, "persisting", slot, segment, SEALED, PERSISTING)
            job = ("copy first", slot, segment, -1, -1) if won else IDLE
            yield "writer: PERSISTING", moved._replace(segment_job=job)
        elif kind == "copy first":
            job = ("copy second", slot, segment, state.content[slot][0], second)
            yield "writer: writes the first row", state._replace(segment_job=job)
        elif kind == "copy second":
            job = ("swap", slot, segment, first, state.content[slot][1])
            yield "writer: writes the second row", state._replace(segment_job=job)
        elif kind == "swap":
            yield from self._swap_written(state, slot, segment, (first, second))
        elif kind == "name":
            # The file has its name, and the record: both count from PERSISTED only.
            named = state._replace(
                pool=state.pool | {segment},
                records=put(state.records, slot, segment),
                segment_job=("publish", slot, segment, first, second),
            )
            yield "writer: names the file", named
        elif kind == "publish":
            won, moved = self._move_slot(state, "persisted", slot, segment, WRITTEN, PERSISTED)
            pool = state.pool if won else state.pool - {segment}
            yield "writer: PERSISTED", moved._replace(pool=pool, segment_job=IDLE)

    def _swap_written(
        self, state: State, slot: int, segment: int, rows: tuple[int, int]
    ) -> Iterator[tuple[str, State]]:
        won, moved = self._move_slot(state, "written", slot, segment, PERSISTING, WRITTEN)
        if won and rows != (segment * ROWS, segment * ROWS + 1):
            raise Broken(f"segment {segment} was persisted with rows {rows}")
        job = ("name", slot, segment, *rows) if won else IDLE
        yield (
            "writer: WRITTEN" if won else "writer: has lost a slot",
            moved._replace(segment_job=job),
        )
        if state.failures < self.limits.failures:
            _, back = self._move_slot(state, "give back", slot, segment, PERSISTING, SEALED)
            failed = back._replace(segment_job=IDLE, failures=state.failures + 1)
            yield "writer: a write fails", failed

    def _pinned(self, state: State) -> set[int]:
        if state.snapshot_job == IDLE or "pinned" in self.broken:
            return set()
        return {slot for slot, _ in state.snapshot_job[3]}  # type: ignore[attr-defined]

    def _snapshot_job(self, state: State) -> Iterator[tuple[str, State]]:
        if state.snapshot_job == IDLE:
            yield from self._take_up(state)
            return
        kind, sequence, missing, pinned, half = state.snapshot_job
        assert isinstance(sequence, int)
        if kind == "find":
            yield from self._find(state, sequence, missing, pinned)  # type: ignore[arg-type]
        elif kind == "rows":
            yield from self._copy_open(state, sequence, pinned)  # type: ignore[arg-type]
        elif kind in ("first half", "second half"):
            seen = state.staged[kind == "second half"]
            after = "second half" if kind == "first half" else "commit"
            sound = half and seen == sequence
            job = (after, sequence, (), pinned, sound)
            yield f"writer: copies the {kind}", state._replace(snapshot_job=job)
        elif kind == "commit":
            yield from self._commit(state, sequence, bool(half))
        elif kind == "manifest":
            shown = state._replace(
                manifests=state.manifests | {sequence},
                snapshot_job=("settle", sequence, (), (), True),
            )
            yield "writer: the manifest is there", shown
        elif kind == "settle":
            if state.snapshot != (sequence, COMMITTING):
                raise Broken("somebody else decided a snapshot that was being committed")
            job = ("end", sequence, (), (), True)
            early = "manifest first" in self.broken
            decided = state._replace(
                snapshot=(sequence, COMMITTED),
                snapshot_job=("late", sequence, (), (), True) if early else job,
            )
            yield "writer: COMMITTED", decided
        elif kind == "late":
            job = ("end", sequence, (), (), True)
            late = state._replace(manifests=state.manifests | {sequence}, snapshot_job=job)
            yield "writer: a late manifest", late
        elif kind == "end":
            if state.staging != (sequence, WRITING):
                raise Broken("the staging slot was taken from the writer")
            ended = state._replace(staging=(sequence, FREE), snapshot_job=IDLE)
            yield "writer: frees the staging slot", ended

    def _take_up(self, state: State) -> Iterator[tuple[str, State]]:
        sequence, staging = state.staging
        if staging != STAGED:
            return
        tag, fate = state.snapshot
        if tag != sequence or fate not in (PENDING, COMMITTING):
            dropped = state._replace(staging=(sequence, FREE))
            yield "writer: drops a decided snapshot", dropped
            return
        taken = state._replace(staging=(sequence, WRITING))
        if fate == COMMITTING:
            if sequence in state.manifests:
                job = ("settle", sequence, (), (), True)
                yield "writer: finds the manifest", taken._replace(snapshot_job=job)
                return
            if "roll back" not in self.broken:
                taken = taken._replace(snapshot=(sequence, PENDING))
        _, tail, total = state.hold
        segments = tuple(range(tail // ROWS, -(-total // ROWS)))
        job = ("find", sequence, segments, (), True)
        yield "writer: takes a snapshot up", taken._replace(snapshot_job=job)

    def _is_alive(self, state: State, sequence: int) -> bool:
        return state.snapshot in ((sequence, PENDING), (sequence, COMMITTING))

    def _find(
        self, state: State, sequence: int, missing: tuple[int, ...], pinned: tuple[Word, ...]
    ) -> Iterator[tuple[str, State]]:
        end = state._replace(snapshot_job=("end", sequence, (), (), True))
        if not self._is_alive(state, sequence):
            yield "writer: sees the cancellation", end
            return
        if not missing:
            job = ("rows", sequence, (), pinned, True)
            yield "writer: has found all", state._replace(snapshot_job=job)
            return
        segment, *rest = missing
        place = state.places[segment]
        if place is None or (place != FILE and state.words[place][0] != segment):
            raise Broken(f"segment {segment} went while snapshot {sequence} held it")
        slot_state = PERSISTED if place == FILE else state.words[place][1]
        if slot_state == OPEN:
            assert place is not None
            pinned = (*pinned, (place, segment))
        elif slot_state != PERSISTED:
            if state.failures >= self.limits.failures and self.limits.failures:
                failed = end._replace(snapshot=(sequence, FAILED))
                yield "writer: the snapshot fails", failed
            return  # the segment job comes first
        elif segment not in state.pool:
            raise Broken(f"the file of segment {segment} is not there")
        job = ("find", sequence, tuple(rest), pinned, True)
        yield "writer: finds a segment", state._replace(snapshot_job=job)

    def _copy_open(
        self, state: State, sequence: int, pinned: tuple[Word, ...]
    ) -> Iterator[tuple[str, State]]:
        _, tail, total = state.hold
        sound = True
        for slot, segment in pinned:
            for row in range(max(tail, segment * ROWS), min(total, (segment + 1) * ROWS)):
                sound &= state.content[slot][row % ROWS] == row
        job = ("first half", sequence, (), pinned, sound)
        yield "writer: copies the open rows", state._replace(snapshot_job=job)

    def _commit(self, state: State, sequence: int, sound: bool) -> Iterator[tuple[str, State]]:
        won, word = self._swap(
            "commit", state.snapshot, (sequence, PENDING), (sequence, COMMITTING)
        )
        if "roll back" in self.broken and state.snapshot == (sequence, COMMITTING):
            won = False
        if not won:
            job = ("end", sequence, (), (), True)
            yield "writer: was cancelled", state._replace(snapshot_job=job)
            return
        if not sound:
            raise Broken(f"snapshot {sequence} is committed with bytes that are not its own")
        after = "settle" if "manifest first" in self.broken else "manifest"
        job = (after, sequence, (), (), True)
        yield "writer: COMMITTING", state._replace(snapshot=word, snapshot_job=job)

    def _after_death(self, state: State) -> Iterator[tuple[str, State]]:
        """The drain: what the trainer had no time to end."""
        sequence, staging = state.staging
        if staging == STAGING:
            _, fate = state.snapshot
            snapshot = state.snapshot
            if state.snapshot == (sequence, PENDING):
                snapshot = (sequence, CANCELLED)
            assert fate != COMMITTING or snapshot[0] != sequence
            freed = state._replace(staging=(sequence, FREE), snapshot=snapshot)
            yield "writer: abandons a claim", freed
        for slot, (segment, slot_state) in enumerate(state.words):
            if slot_state == OPEN and (segment + 1) * ROWS <= state.total:
                words = put(state.words, slot, (segment, SEALED))
                yield "writer: seals what is full", state._replace(words=words)

    # -- what must hold ------------------------------------------------------------------------

    def check(self, state: State) -> None:
        """Raise Broken where the state contradicts what the snapshots' words promise."""
        sequence, fate = state.snapshot
        if fate == COMMITTED and sequence not in state.manifests:
            raise Broken(f"snapshot {sequence} is COMMITTED without a manifest")
        if fate in (CANCELLED, FAILED) and sequence in state.manifests:
            raise Broken(f"snapshot {sequence} was given up and is on disk")
        tag, staging = state.staging
        if (
            staging in (STAGED, WRITING)
            and self._is_alive(state, tag)
            and state.staged != (tag, tag)
        ):
            raise Broken(f"the staging slot of snapshot {tag} holds {state.staged}")
        for row in range(tail_of(state.total), state.total):
            place = state.places[row // ROWS]
            if place is None or (place != FILE and state.content[place][row % ROWS] != row):
                raise Broken(f"published row {row} is not there")

    def check_end(self, state: State) -> None:
        """Raise Broken where a run that can go no further has left something undone."""
        if not state.writer_is_alive:
            return  # both are dead: the disk alone counts
        if state.snapshot[1] not in TERMINAL or state.staging[1] != FREE:
            raise Broken(f"the run ends with {state.snapshot}, staging {state.staging}")
        for segment, slot_state in state.words:
            if slot_state in (SEALED, PERSISTING, WRITTEN):
                raise Broken(f"the run ends with segment {segment} in state {slot_state}")
