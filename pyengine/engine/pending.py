"""A snapshot that was started: what becomes of it, read from the control block."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from pyengine import errors
from pyengine.engine.critical import is_in_signal_handler
from pyengine.fs.limits import explain
from pyengine.shm.states import SnapshotState, StagingState

if TYPE_CHECKING:
    from pyengine.catalog.info import SnapshotInfo
    from pyengine.shm.control import Entry, Outcome


class Watch(Protocol):
    """Who sees to it that the writer goes on while somebody waits."""

    def wait(self, seconds: float) -> None:
        """Wait for news from the writer, at most `seconds`, and take them in."""

    def read_info(self, name: str) -> SnapshotInfo:
        """Return the record of a committed snapshot."""

    def is_this_threads_turn(self) -> bool:
        """Whether the calling thread is in a tick, a snapshot or a restore."""


class PendingSnapshot:
    """A snapshot on its way to disk; made by `tick` and `snapshot`. Any thread may wait for it.

    `step`, `sequence` and `name` say which one it is. Asked for in a signal handler it is a wish
    at first (state NONE, no name), which the next tick fulfils. It stays readable after the engine
    was closed. In a forked child one whose fate is not known yet raises ForkedProcessError.
    """

    def __init__(self, watch: Watch) -> None:
        self.step = -1
        self.sequence = 0
        self.name = ""
        self.weights_only = False
        """Whether modules and tensors alone were taken."""
        self.stall_seconds = 0.0
        """How long the capture held the training loop: its tick, and with `overlap` the optimizer's
        step that waited for the rest."""
        self._watch = watch
        self._entry: Entry | None = None
        self._state = SnapshotState.NONE
        self._error: errors.PyengineError | None = None
        self._outcome: Outcome | None = None
        self._info: SnapshotInfo | None = None
        self._is_told = False

    def __repr__(self) -> str:
        return f"PendingSnapshot({self.name or 'wished'}, {self.state.name.lower()})"

    @property
    def state(self) -> SnapshotState:
        """Where the snapshot stands; COMMITTED, FAILED and CANCELLED are final."""
        self.settle()
        return self._state

    @property
    def is_done(self) -> bool:
        """Whether its fate is decided."""
        return self.state.is_terminal

    @property
    def progress(self) -> str:
        """How far it is, for messages to people."""
        self.settle()
        if self._state == SnapshotState.COMMITTING:
            return "it is being committed"
        if self._entry is not None and self._entry.staging[1] == StagingState.WRITING:
            return "its files are being written"
        if self._state == SnapshotState.PENDING:
            return "the writer has not begun with it"
        return f"it is {self._state.name.lower()}"

    @property
    def outcome(self) -> Outcome | None:
        """What it cost the writer (`persist_ns`, `bytes_written`, `new_bytes`), once committed."""
        self.settle()
        return self._outcome

    @property
    def error(self) -> errors.PyengineError | None:
        """Why there is no such snapshot; None while it is pending and when it was committed."""
        self.settle()
        return self._error

    def wait(self, timeout: float | None = None) -> SnapshotInfo:
        """Wait until the snapshot is durable and return its record.

        Raises the snapshot's error (SnapshotFailedError, NoSpaceError, SnapshotCancelledError, ...)
        and TimeoutError after `timeout` seconds; it stays pending then and may be waited for again.
        SnapshotPrunedError where it was durable and `keep_last` newer ones have replaced it since,
        SnapshotUnreadError where it is durable and its record cannot be read (files, the disk).
        SnapshotError or NestedCallError for a wish where no tick can come meanwhile.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_done:
            if self._state == SnapshotState.NONE:
                self._check_may_wait_for_tick()
            if self._entry is None and self._state != SnapshotState.NONE:
                raise errors.ClosedError(f"the engine closed while {self.name} was pending")
            remaining = 1.0 if deadline is None else deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(
                    f"snapshot {self.name or '(wished)'} is still pending after {timeout} s: "
                    f"{self.progress}"
                )
            self._watch.wait(min(1.0, remaining))
        self._is_told = True
        if self._error is not None:
            raise self._error
        if self._info is None:
            try:
                self._info = self._watch.read_info(self.name)
            except FileNotFoundError as error:
                raise errors.SnapshotPrunedError(
                    f"snapshot {self.name} was committed, and newer ones have taken its place "
                    "since: wait for it sooner, or raise keep_last",
                    sequence=self.sequence,
                ) from error
            except OSError as error:
                raise errors.SnapshotUnreadError(
                    f"snapshot {self.name} is committed and durable, but its record cannot be read "
                    f"here ({explain(error)}): nothing is lost; mend that and call wait() again",
                    sequence=self.sequence,
                ) from error
        return self._info

    def _check_may_wait_for_tick(self) -> None:
        if is_in_signal_handler():
            raise errors.SnapshotError("the snapshot is taken at the next tick, not in here")
        if self._watch.is_this_threads_turn():
            raise errors.NestedCallError(
                "the snapshot is taken at the next tick, and this thread is still in the last one"
            )

    def settle(self) -> None:
        """Take over what the control block says, as long as it speaks of this snapshot."""
        entry = self._entry
        if entry is None or self._state.is_terminal:
            return
        try:
            sequence, state = entry.snapshot
        except errors.ClosedError:
            return  # the engine was closed by another thread: what is known stays
        if self._entry is not entry:
            return  # another thread was faster, and the entry may speak of another snapshot by now
        if sequence != self.sequence:
            # Never to be seen: whoever claims an entry records the fate of its former snapshot.
            state = SnapshotState.FAILED
            self._error = errors.SnapshotFailedError(
                f"snapshot {self.name}: nobody noted what became of it before snapshot {sequence}",
                sequence=self.sequence,
            )
        elif state == SnapshotState.COMMITTED:
            self._outcome = entry.outcome
        elif state == SnapshotState.FAILED:
            self._error = _error_of(entry.error, self.name, self.sequence)
        elif state == SnapshotState.CANCELLED:
            self._error = errors.SnapshotCancelledError(
                f"snapshot {self.name} was given up so that training could go on",
                sequence=self.sequence,
            )
        self._state = state
        if state.is_terminal:
            self._entry = None

    def bind(self, entry: Entry, *, step: int, sequence: int, name: str) -> None:
        """Turn a wish into a snapshot that is about to be published."""
        self.step, self.sequence, self.name = step, sequence, name
        self._state = SnapshotState.PENDING
        self._entry = entry

    def detach(self) -> None:
        """Let go of the control block, which is about to go away; keep what is known."""
        self.settle()
        self._entry = None

    def give_up(self) -> None:
        """Decide a wish that no tick is going to fulfil."""
        self._error = errors.SnapshotCancelledError(
            "the engine closed before a tick took the snapshot that was asked for", sequence=0
        )
        self._state = SnapshotState.CANCELLED

    def take_error(self) -> errors.PyengineError | None:
        """Return the error the first time it is asked for, unless it was told before.

        `wait` tells it; a snapshot that was given up was told of when that happened, and training
        was meant to go on.
        """
        self.settle()
        if self._error is None or self._is_told or self._state == SnapshotState.CANCELLED:
            return None
        self._is_told = True
        return self._error


def _error_of(record: dict[str, Any] | None, name: str, sequence: int) -> errors.PyengineError:
    """Make the exception that the writer's error record describes."""
    record = record or {}
    text = f"snapshot {name}: {record.get('message', 'the writer gave no reason')}"
    kind = getattr(errors, str(record.get("type")), None)
    if kind is errors.NoSpaceError:
        return errors.NoSpaceError(
            text,
            sequence=sequence,
            needed_bytes=int(record.get("needed", 0)),
            free_bytes=int(record.get("free", 0)),
        )
    if kind is errors.ChangedWhileStagedError:
        return errors.ChangedWhileStagedError(
            text,
            sequence=sequence,
            component=str(record.get("component", "")),
            tensor=str(record.get("tensor", "")),
        )
    if isinstance(kind, type) and issubclass(kind, errors.SnapshotError):
        return kind(text, sequence=sequence)
    if kind is errors.StaleGenerationError:
        return errors.StaleGenerationError(text, path=str(record.get("path", "")))
    return errors.SnapshotFailedError(text, sequence=sequence)
