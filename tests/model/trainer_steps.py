"""The trainer's steps: append, seal, age out, claim and fill a staging slot, cut, cancel."""

from __future__ import annotations

from collections.abc import Iterator

from words import (
    CANCELLED,
    COMMITTING,
    FILE,
    FREE,
    IDLE,
    OPEN,
    PENDING,
    PERSISTED,
    ROWS,
    SEALED,
    STAGED,
    STAGING,
    TERMINAL,
    Broken,
    Machine,
    State,
    put,
    tail_of,
)


class TrainerSteps(Machine):
    """What a living trainer may do next."""

    def trainer_steps(self, state: State) -> Iterator[tuple[str, State]]:
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
        yield from self._spill(state)
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

    def _spill(self, state: State) -> Iterator[tuple[str, State]]:
        """Let a segment of the window live in its file, as under a memory limit."""
        for segment, place in enumerate(state.places):
            if place is None or place == FILE or (segment + 1) * ROWS <= tail_of(state.total):
                continue
            _, slot_state = state.words[place]
            if slot_state == PERSISTED or ("files first" in self.broken and slot_state == SEALED):
                yield (
                    "trainer: spills a segment",
                    state._replace(
                        places=put(state.places, segment, FILE), trainer=("free", place)
                    ),
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
            if self.limits.overlap:
                later = filled._replace(trainer=("cut", "begin late"))
                yield "trainer: leaves the second half for later", later
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
        elif step == "begin late":
            begun = state._replace(
                snapshot=(sequence, PENDING),
                hold=(sequence, tail_of(state.total), state.total),
                trainer=IDLE,
                late=("copy", sequence, True),
            )
            yield "trainer: PENDING, and goes on", begun
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

    def _is_held(self, state: State, segment: int) -> bool:
        sequence, tail, total = state.hold
        tag, fate = state.snapshot
        return (
            "held" not in self.broken
            and (tag, fate) in ((sequence, PENDING), (sequence, COMMITTING))
            and tail < (segment + 1) * ROWS
            and total > segment * ROWS
        )
