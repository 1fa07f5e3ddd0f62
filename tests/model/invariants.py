"""What must hold in every state, and in every state that a run ends in."""

from __future__ import annotations

from words import (
    CANCELLED,
    COMMITTED,
    FAILED,
    FILE,
    FREE,
    PERSISTING,
    ROWS,
    SEALED,
    STAGED,
    TERMINAL,
    WRITING,
    WRITTEN,
    Broken,
    State,
    is_alive,
    tail_of,
)


def check(state: State) -> None:
    """Raise Broken where the state contradicts what the snapshots' words promise."""
    sequence, fate = state.snapshot
    if fate == COMMITTED and sequence not in state.manifests:
        raise Broken(f"snapshot {sequence} is COMMITTED without a manifest")
    if fate in (CANCELLED, FAILED) and sequence in state.manifests:
        raise Broken(f"snapshot {sequence} was given up and is on disk")
    tag, staging = state.staging
    if staging in (STAGED, WRITING) and is_alive(state, tag) and state.staged != (tag, tag):
        raise Broken(f"the staging slot of snapshot {tag} holds {state.staged}")
    for row in range(tail_of(state.total), state.total):
        place = state.places[row // ROWS]
        if place is None or (place != FILE and state.content[place][row % ROWS] != row):
            raise Broken(f"published row {row} is not there")
        if place == FILE and row // ROWS not in state.pool:
            raise Broken(f"published row {row} lives in a file that is not there")


def check_end(state: State) -> None:
    """Raise Broken where a run that can go no further has left something undone."""
    if not state.writer_is_alive:
        return  # both are dead: the disk alone counts
    if state.snapshot[1] not in TERMINAL or state.staging[1] != FREE:
        raise Broken(f"the run ends with {state.snapshot}, staging {state.staging}")
    for segment, slot_state in state.words:
        if slot_state in (SEALED, PERSISTING, WRITTEN):
            raise Broken(f"the run ends with segment {segment} in state {slot_state}")
