"""PendingSnapshot: what the control block says becomes results and typed errors."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyengine import errors
from pyengine.engine.pending import PendingSnapshot
from pyengine.shm.arena import Arena
from pyengine.shm.control import CONTROL_BYTES, EngineControl, Entry, Outcome
from pyengine.shm.states import SnapshotState, StagingState


class Watch:
    """Stands for the session: each wait runs the next thing that the writer would do."""

    def __init__(self) -> None:
        self.events: list[Callable[[], Any]] = []
        self.waits = 0

    def wait(self, seconds: float) -> None:
        self.waits += 1
        if self.events:
            self.events.pop(0)()

    def read_info(self, name: str) -> Any:
        return f"info of {name}"

    def is_this_threads_turn(self) -> bool:
        return False


@pytest.fixture
def control() -> Iterator[EngineControl]:
    with Arena.create(CONTROL_BYTES, "test") as arena:
        control = EngineControl.create(arena, generation=2, run_id="r")
        yield control
        control.release()


def begin(watch: Watch, entry: Entry, sequence: int = 7) -> PendingSnapshot:
    pending = PendingSnapshot(watch)
    assert entry.claim(sequence)
    entry.begin(sequence)
    pending.bind(entry, step=40, sequence=sequence, name="step-00000040.g0002.s0007")
    return pending


def commit(entry: Entry, sequence: int = 7) -> None:
    entry.outcome = Outcome(persist_ns=5, bytes_written=6, new_bytes=7)
    assert entry.move_snapshot(sequence, SnapshotState.PENDING, SnapshotState.COMMITTED)


def test_wait_returns_the_record_once_committed(control: EngineControl) -> None:
    watch, entry = Watch(), control.entries[0]
    pending = begin(watch, entry)
    watch.events = [lambda: None, lambda: commit(entry)]
    assert pending.wait(10) == "info of step-00000040.g0002.s0007"
    assert watch.waits == 2
    assert pending.outcome == Outcome(5, 6, 7)
    assert pending.take_error() is None


def test_a_record_that_cannot_be_read_now_is_no_lost_snapshot(
    control: EngineControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, entry = Watch(), control.entries[0]
    pending = begin(watch, entry)
    commit(entry)

    def no_more_files(name: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files", name)

    with monkeypatch.context() as patch:
        patch.setattr(watch, "read_info", no_more_files)
        with pytest.raises(errors.SnapshotUnreadError, match="committed and durable") as caught:
            pending.wait(0)
    assert "RLIMIT_NOFILE" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert pending.wait(0) == f"info of {pending.name}"
    assert pending.take_error() is None


def test_a_timeout_leaves_it_pending(control: EngineControl) -> None:
    watch, entry = Watch(), control.entries[0]
    pending = begin(watch, entry)
    with pytest.raises(TimeoutError):
        pending.wait(0)
    assert pending.state == SnapshotState.PENDING
    commit(entry)
    assert pending.wait(0)


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"type": "SnapshotFailedError", "message": "m"}, errors.SnapshotFailedError),
        ({"type": "NoSpaceError", "message": "m", "needed": 9, "free": 4}, errors.NoSpaceError),
        ({"type": "StaleGenerationError", "message": "m"}, errors.StaleGenerationError),
        ({"type": "WriterDiedError", "message": "m"}, errors.WriterDiedError),
        ({"type": "OSError", "message": "m"}, errors.SnapshotFailedError),
    ],
)
def test_a_failure_is_the_typed_error_of_its_record(
    control: EngineControl, record: dict[str, Any], kind: type[errors.PyengineError]
) -> None:
    entry = control.entries[0]
    pending = begin(Watch(), entry)
    assert entry.fail(7, record)
    with pytest.raises(kind, match="m") as caught:
        pending.wait(0)
    assert type(caught.value) is kind
    if isinstance(caught.value, errors.NoSpaceError):
        assert (caught.value.needed_bytes, caught.value.free_bytes) == (9, 4)


def test_an_error_is_told_once(control: EngineControl) -> None:
    entry = control.entries[0]
    pending = begin(Watch(), entry)
    entry.fail(7, {"type": "SnapshotFailedError", "message": "m"})
    assert isinstance(pending.take_error(), errors.SnapshotFailedError)
    assert pending.take_error() is None


def test_an_error_that_wait_raised_is_not_told_again(control: EngineControl) -> None:
    entry = control.entries[0]
    pending = begin(Watch(), entry)
    entry.cancel(7)
    with pytest.raises(errors.SnapshotCancelledError):
        pending.wait(0)
    assert pending.take_error() is None


def test_a_snapshot_that_was_given_up_is_an_error_only_for_who_waits(
    control: EngineControl,
) -> None:
    entry = control.entries[0]
    pending = begin(Watch(), entry)
    entry.cancel(7)
    assert pending.take_error() is None
    with pytest.raises(errors.SnapshotCancelledError):
        pending.wait(0)


def test_in_a_forked_child_only_what_was_known_can_be_read(control: EngineControl) -> None:
    decided, pending = begin(Watch(), control.entries[0]), begin(Watch(), control.entries[1])
    commit(control.entries[0])
    assert decided.is_done
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            assert decided.is_done
            for call in (lambda: pending.state, lambda: pending.wait(0), pending.take_error):
                with pytest.raises(errors.ForkedProcessError):
                    call()
            status = 0
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert pending.state == SnapshotState.PENDING


def test_the_fate_outlives_the_reuse_of_its_entry(control: EngineControl) -> None:
    entry = control.entries[0]
    pending = begin(Watch(), entry)
    commit(entry)
    pending.settle()
    assert entry.move_staging(7, StagingState.STAGING, StagingState.FREE)
    assert entry.claim(8)
    entry.begin(8)
    assert pending.state == SnapshotState.COMMITTED


def test_waiting_for_a_wish_that_no_tick_fulfils_raises() -> None:
    wish = PendingSnapshot(Watch())
    wish.give_up()
    with pytest.raises(errors.SnapshotCancelledError, match="closed before a tick"):
        wish.wait()
    assert wish.state == SnapshotState.CANCELLED


def test_waiting_for_a_pending_snapshot_of_a_closed_engine_raises(control: EngineControl) -> None:
    pending = begin(Watch(), control.entries[0])
    pending.detach()
    with pytest.raises(errors.ClosedError):
        pending.wait(1)


def test_a_thread_that_looked_late_does_not_undo_what_another_has_seen(
    control: EngineControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = control.entries[0]
    pending = begin(Watch(), entry)
    look = Entry.snapshot.fget
    assert look is not None

    def look_while_another_thread_settles(one: Entry) -> tuple[int, SnapshotState]:
        monkeypatch.setattr(Entry, "snapshot", property(look))
        commit(entry)
        assert pending.state == SnapshotState.COMMITTED
        assert entry.move_staging(7, StagingState.STAGING, StagingState.FREE)
        assert entry.claim(9)
        entry.begin(9)
        return look(one)

    monkeypatch.setattr(Entry, "snapshot", property(look_while_another_thread_settles))
    assert pending.state == SnapshotState.COMMITTED
    assert pending.error is None


def test_waiting_for_a_snapshot_that_was_pruned_says_so(control: EngineControl) -> None:
    class PrunedWatch(Watch):
        def read_info(self, name: str) -> Any:
            raise FileNotFoundError(name)

    entry = control.entries[0]
    pending = begin(PrunedWatch(), entry)
    commit(entry)
    with pytest.raises(errors.SnapshotPrunedError, match="keep_last"):
        pending.wait(5)
    assert pending.state == SnapshotState.COMMITTED
