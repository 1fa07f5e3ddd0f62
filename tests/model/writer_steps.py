"""The writer's steps: its segment job, its snapshot job, its restart, and the drain."""

from __future__ import annotations

from collections.abc import Iterator

from words import (
    CANCELLED,
    COMMITTED,
    COMMITTING,
    FAILED,
    FILE,
    FREE,
    IDLE,
    OPEN,
    PENDING,
    PERSISTED,
    PERSISTING,
    ROWS,
    SEALED,
    STAGED,
    STAGING,
    WRITING,
    WRITTEN,
    Broken,
    Machine,
    State,
    Word,
    is_alive,
    put,
)


class WriterSteps(Machine):
    """What a living writer may do next; its two jobs go on side by side."""

    def restart(self, state: State) -> State:
        """A new writer's first act, before the trainer's next; nothing of the old one runs."""
        words = []
        for tag, slot_state in state.words:
            back = slot_state in (PERSISTING, WRITTEN) and "take back segment" not in self.broken
            words.append((tag, SEALED) if back else (tag, slot_state))
        sequence, staging = state.staging
        if staging == WRITING and "take back staging" not in self.broken:
            staging = STAGED
        return state._replace(words=tuple(words), staging=(sequence, staging), writer_is_alive=True)

    def segment_job_steps(self, state: State) -> Iterator[tuple[str, State]]:
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

    def snapshot_job_steps(self, state: State) -> Iterator[tuple[str, State]]:
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

    def _find(
        self, state: State, sequence: int, missing: tuple[int, ...], pinned: tuple[Word, ...]
    ) -> Iterator[tuple[str, State]]:
        end = state._replace(snapshot_job=("end", sequence, (), (), True))
        if not is_alive(state, sequence):
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

    def drain_steps(self, state: State) -> Iterator[tuple[str, State]]:
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
