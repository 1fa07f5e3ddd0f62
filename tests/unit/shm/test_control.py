"""The control block: words are moved by whoever still finds what he expects."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pyengine._native.control import Words
from pyengine.errors import SharedMemoryError
from pyengine.shm.arena import Arena
from pyengine.shm.control import (
    CONTROL_BYTES,
    ERROR_BYTES,
    DescriptorPlace,
    EngineControl,
    Outcome,
)
from pyengine.shm.states import SlotState, SnapshotState, StagingState, pack_word, unpack_word


@pytest.fixture
def control() -> Iterator[EngineControl]:
    with Arena.create(CONTROL_BYTES, "control") as arena:
        yield EngineControl.create(arena, generation=3, run_id="run-7", line=99)


def test_a_word_carries_tag_and_state() -> None:
    for tag in (0, 1, (1 << 56) - 1):
        for state in SlotState:
            assert unpack_word(pack_word(tag, state)) == (tag, state)


def test_the_other_process_reads_what_was_created(control: EngineControl) -> None:
    with Arena.attach(os.dup(control.arena.fd), CONTROL_BYTES) as arena:
        theirs = EngineControl.attach(arena)
        assert (theirs.generation, theirs.run_id, theirs.line) == (3, "run-7", 99)
        control.entries[1].claim(5)
        assert theirs.entries[1].staging == (5, StagingState.STAGING)
        assert theirs.entries[0].staging == (0, StagingState.FREE)
        theirs.release()


def test_foreign_memory_is_refused() -> None:
    with Arena.create(CONTROL_BYTES, "control") as arena, pytest.raises(SharedMemoryError):
        EngineControl.attach(arena)


def test_a_slot_in_use_cannot_be_claimed(control: EngineControl) -> None:
    entry = control.entries[0]
    assert entry.claim(1)
    assert not entry.claim(2)
    assert entry.move_staging(1, StagingState.STAGING, StagingState.FREE)
    assert entry.claim(2)
    assert entry.staging == (2, StagingState.STAGING)


def test_a_swap_for_another_sequence_fails(control: EngineControl) -> None:
    entry = control.entries[0]
    entry.claim(2)
    entry.begin(2)
    assert not entry.move_snapshot(1, SnapshotState.PENDING, SnapshotState.COMMITTING)
    assert not entry.move_staging(1, StagingState.STAGING, StagingState.STAGED)
    assert entry.snapshot == (2, SnapshotState.PENDING)


def test_only_one_of_cancel_and_commit_wins(control: EngineControl) -> None:
    entry = control.entries[0]
    entry.begin(1)
    assert entry.cancel(1)
    assert not entry.move_snapshot(1, SnapshotState.PENDING, SnapshotState.COMMITTING)
    entry.begin(2)
    assert entry.move_snapshot(2, SnapshotState.PENDING, SnapshotState.COMMITTING)
    assert not entry.cancel(2)


def test_a_hold_finds_the_snapshot_word_by_its_offset(control: EngineControl) -> None:
    for entry in control.entries:
        entry.begin(40 + entry.index)
        words = Words(control.arena.mapping, entry.snapshot_word_offset, 1)
        assert unpack_word(words.load(0)) == (40 + entry.index, SnapshotState.PENDING)
        words.release()


def test_descriptor_and_outcome_come_back(control: EngineControl) -> None:
    entry = control.entries[1]
    entry.descriptor = DescriptorPlace(3, 4096, 77)
    entry.outcome = Outcome(1, 2, 3)
    assert entry.descriptor == DescriptorPlace(3, 4096, 77)
    assert entry.outcome == Outcome(1, 2, 3)
    entry.begin(9)
    assert entry.outcome == Outcome()


def test_a_failure_tells_why(control: EngineControl) -> None:
    entry = control.entries[0]
    entry.begin(1)
    assert entry.error is None
    assert entry.fail(1, {"type": "NoSpaceError", "message": "full", "needed": 5, "free": 3})
    assert entry.snapshot == (1, SnapshotState.FAILED)
    assert entry.error == {"type": "NoSpaceError", "message": "full", "needed": 5, "free": 3}
    entry.begin(2)
    assert entry.error is None


def test_a_cancelled_snapshot_does_not_fail(control: EngineControl) -> None:
    entry = control.entries[0]
    entry.begin(1)
    entry.cancel(1)
    assert not entry.fail(1, {"type": "SnapshotFailedError", "message": "x"})
    assert entry.snapshot == (1, SnapshotState.CANCELLED)


def test_a_long_message_is_shortened_and_not_lost(control: EngineControl) -> None:
    entry = control.entries[0]
    entry.begin(1)
    entry.fail(1, {"type": "SnapshotFailedError", "message": "ä" * ERROR_BYTES})
    error = entry.error
    assert error is not None
    assert error["type"] == "SnapshotFailedError"
    assert len(error["message"]) > ERROR_BYTES // 4
    assert set(error["message"]) == {"ä"}


def test_the_parent_is_the_last_one_set(control: EngineControl) -> None:
    assert control.parent is None
    for name in ("step-00000001.g0001.s0001", "x", "step-00000002.g0001.s0002", None, "last"):
        control.parent = name
        assert control.parent == name
    with pytest.raises(ValueError, match="bytes"):
        control.parent = "n" * 500
    assert control.parent == "last"


def test_the_heartbeat_is_apart(control: EngineControl) -> None:
    control.writer_heartbeat = 6
    control.line = 7
    assert (control.writer_heartbeat, control.line) == (6, 7)
