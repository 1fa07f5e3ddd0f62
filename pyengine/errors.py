"""Every error that pyengine raises, in one tree.

    PyengineError
    ├── ConfigError                 a setting or argument that cannot work (also ValueError)
    ├── ForkedProcessError          an object was used in a forked child of the process that made it
    ├── ClosedError                 the object was closed
    ├── NestedCallError             an engine was asked for something from within its own call
    ├── SchemaError                 a schema that cannot be laid out (also ValueError)
    ├── RowError                    rows that do not fit the schema; the ring is unchanged
    │   ├── FieldShapeError  FieldDtypeError  MissingFieldError  UnknownFieldError
    │   ├── BrokenStackError        the next stack of frames does not follow the one before it
    │   ├── ImmutableFieldError     an append field changed in place
    │   ├── UnknownRefError         a ref that this ring never handed out
    │   ├── PriorityError           a priority that is negative, infinite or NaN
    │   └── DroppedRowError         the row was given up: its block is damaged (on_damage="drop")
    ├── EmptyRingError              sampling from a ring without rows
    ├── RingInUseError              a second engine on one ring
    ├── SharedMemoryError           /dev/shm or the cgroup has no room
    ├── ModelStateError             a library's model that has trained before the run began
    ├── CaptureError                state that cannot be captured; raised before the cut
    │   ├── UntrackableError        an object that cannot be restored in place
    │   ├── UncoveredParameterError an optimizer steps parameters of no tracked module
    │   ├── UncapturedStateError    state lies in an attribute of what is tracked, and is not saved
    │   └── ReplacedObjectError     a tracked object was exchanged for another one
    ├── RunError
    │   ├── RunBusyError            another live process owns the run directory
    │   ├── RunDirectoryError       not a run directory, or not a safe one
    │   ├── StaleGenerationError    a newer claim exists; nothing was touched
    │   ├── UnrestoredRunError      the run holds snapshots and none was restored
    │   └── PoisonedEngineError     a restore failed half-way; restore again first
    ├── SnapshotError
    │   ├── SnapshotBusyError       no staging slot became free in time
    │   ├── SnapshotCancelledError  given up so that training could go on
    │   ├── SnapshotPrunedError     committed, and removed since as keep_last says
    │   ├── SnapshotUnreadError     committed, and its record cannot be read just now
    │   ├── SnapshotFailedError     the writer could not make it durable
    │   ├── NoSpaceError            ... because the file system is full
    │   ├── ChangedWhileStagedError a tensor changed before it was copied; nothing torn was saved
    │   └── WriterDiedError         the writer process died and could not be replaced
    ├── PortingError                rows that were not brought in or out; nothing is left of them
    │   ├── SourceFormatError       not a file of that format, or a damaged one
    │   ├── UnportableError         what one side has, the other cannot hold
    │   └── TargetExistsError       there is something under the name (also FileExistsError)
    └── RestoreError
        ├── ComponentMismatchError  saved and tracked components differ
        ├── StateMismatchError      a component's saved state does not fit the live object
        ├── PickleRefusedError      a component was saved by pickle, and reading it was not allowed
        ├── ModelMismatchError      a library's model is not the one that the run was made with
        ├── TruncatedLogError       a log file of the run was begun anew
        ├── NothingRestorableError  snapshots are, or were, there and none can be restored
        ├── WeightsOnlyError        the snapshots hold weights alone, and nobody asked for that
        ├── SanityCheckError        what was restored failed its check; restore another snapshot
        ├── FormatVersionError      written by a newer pyengine
        ├── MalformedFileError      its checksum holds and it makes no sense: it was written so
        └── DamageError             proven corruption: path, offset, expected, got
            └── TruncatedFileError  the file is shorter than its record says

    SystemExit
    └── StopRequested               a signal asked the run to end; its last snapshot was taken

Attributes carry the data of each error; the text says what to do.
"""

from __future__ import annotations

from typing import Any


class PyengineError(Exception):
    """Base of every error that pyengine raises on purpose."""


class ConfigError(PyengineError, ValueError):
    """A setting or an argument that cannot work.

    Attributes, None where the text says it all: `field` (the argument), `expected` and `got`.
    """

    def __init__(
        self, message: str, *, field: str | None = None, expected: Any = None, got: Any = None
    ) -> None:
        super().__init__(message)
        self.field = field
        self.expected = expected
        self.got = got


class ForkedProcessError(PyengineError):
    """A pyengine object was used in a forked child; only the process that made it may use it."""


class ClosedError(PyengineError):
    """The object was closed and can no longer be used."""


class NestedCallError(PyengineError):
    """An engine's method was called where it would wait for ever: in an object's own method or
    function for its state, which a `tick`, `snapshot` or `restore` of that engine is calling."""


class SchemaError(PyengineError, ValueError):
    """A schema that cannot be laid out.

    Attributes, None where the text says it all: `field` (name or argument), `expected` and `got`.
    """

    def __init__(
        self, message: str, *, field: str | None = None, expected: Any = None, got: Any = None
    ) -> None:
        super().__init__(message)
        self.field = field
        self.expected = expected
        self.got = got


class RowError(PyengineError, ValueError):
    """Rows that do not fit the schema. The ring is unchanged.

    Attributes: `field` (flat name), `expected` and `got` (as printed).
    """

    def __init__(self, message: str, *, field: str, expected: Any = None, got: Any = None) -> None:
        super().__init__(message)
        self.field = field
        self.expected = expected
        self.got = got


class FieldShapeError(RowError):
    """A value has another shape than its field."""


class FieldDtypeError(RowError):
    """A value's dtype does not convert to its field's: another kind, or out of range."""


class MissingFieldError(RowError):
    """A field of the schema was not given."""


class UnknownFieldError(RowError):
    """A value was given for a field that the schema does not have."""


class BrokenStackError(RowError):
    """A next observation is not the one before it moved on by one frame.

    `got` is (step, lane) of the first such row.
    """


class ImmutableFieldError(RowError):
    """An append field was to be changed in place; declare it `mutable=True` instead."""


class UnknownRefError(RowError):
    """A ref that was never handed out by this ring."""


class PriorityError(RowError):
    """A priority that is negative, infinite or NaN; none of those given with it was stored."""


class DroppedRowError(RowError):
    """A ref of a row that was given up, because its block of a segment file is damaged.

    `ring.refs()` has the refs that can be gathered, `ring.dropped` what was given up.
    """


class EmptyRingError(PyengineError):
    """There is no row to sample."""


class RingInUseError(PyengineError):
    """The ring is already tracked by another engine."""


class SharedMemoryError(PyengineError, MemoryError):
    """Shared memory has no room. Attributes: `needed_bytes`, `free_bytes`."""

    def __init__(self, message: str, *, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class ModelStateError(PyengineError):
    """A library's model has trained before its run began, or is used by a second one."""


class CaptureError(PyengineError):
    """State that cannot be captured. Raised before the cut, so nothing was staged.

    Attribute: `component`, the tracked name.
    """

    def __init__(self, message: str, *, component: str) -> None:
        super().__init__(message)
        self.component = component


class UntrackableError(CaptureError, TypeError):
    """An object that cannot be restored in place; the text shows the form that can."""


class UncoveredParameterError(CaptureError):
    """An optimizer steps parameters that belong to no tracked module."""


class UncapturedStateError(CaptureError):
    """State that the engine can see from tracked or watched objects, and that no snapshot would
    hold. Attributes: `path`, `sort` ("optimizer", ...), `others` (further paths)."""

    def __init__(
        self,
        message: str,
        *,
        component: str,
        path: str,
        sort: str,
        others: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, component=component)
        self.path = path
        self.sort = sort
        self.others = others


class ReplacedObjectError(CaptureError, ConfigError):
    """A tracked object was exchanged for another one, and a snapshot would hold the former.
    Attribute: `path`, where the other one was found."""

    def __init__(self, message: str, *, component: str, path: str | None = None) -> None:
        super().__init__(message, component=component)
        self.path = component if path is None else path


class RunError(PyengineError):
    """Something about the run directory. Attribute: `path`."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class RunBusyError(RunError):
    """Another live process owns the run. Attributes: `pid`, `host`, `since` (ISO 8601)."""

    def __init__(self, message: str, *, path: str, pid: int, host: str, since: str) -> None:
        super().__init__(message, path=path)
        self.pid = pid
        self.host = host
        self.since = since


class RunDirectoryError(RunError):
    """Not a run directory, or one that cannot be used safely."""


class StaleGenerationError(RunError):
    """A newer claim on the run exists; this one may no longer change anything."""


class UnrestoredRunError(RunError):
    """The run holds snapshots and none was restored: call `restore()` or pass `fresh=True`."""


class PoisonedEngineError(RunError):
    """A restore was interrupted half-way; one must succeed before training goes on."""


class SnapshotError(PyengineError):
    """A snapshot did not come about. Attribute: `sequence` (None before it has one)."""

    def __init__(self, message: str, *, sequence: int | None = None) -> None:
        super().__init__(message)
        self.sequence = sequence


class SnapshotBusyError(SnapshotError, TimeoutError):
    """Both staging slots stayed in use for longer than the caller would wait."""


class SnapshotCancelledError(SnapshotError):
    """The snapshot was given up so that training could go on."""


class SnapshotPrunedError(SnapshotError):
    """It was committed, and removed since: newer ones have taken its place, as `keep_last` says."""


class SnapshotUnreadError(SnapshotError):
    """It was committed and is durable, but this process cannot read its record just now, for the
    reason in the text, an OSError, which is the cause. It may be waited for again."""


class SnapshotFailedError(SnapshotError):
    """The writer could not make the snapshot durable; the cause is in the text."""


class NoSpaceError(SnapshotFailedError):
    """The file system is full. Attributes: `needed_bytes`, `free_bytes`."""

    def __init__(
        self,
        message: str,
        *,
        sequence: int | None = None,
        needed_bytes: int = 0,
        free_bytes: int = 0,
    ) -> None:
        super().__init__(message, sequence=sequence)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class ChangedWhileStagedError(SnapshotError):
    """A tensor changed between the cut and the end of its copy. The snapshot is not there.

    With `overlap=True`: something else than a tracked optimizer's step changed it; do so before the
    tick, or call `engine.finish_staging()` first. With `debug_staging=True` also: the learner was
    not at rest during the tick. Attributes: `component` (the tracked name), `tensor` (its name in
    that component).
    """

    def __init__(
        self, message: str, *, component: str, tensor: str, sequence: int | None = None
    ) -> None:
        super().__init__(message, sequence=sequence)
        self.component = component
        self.tensor = tensor


class WriterDiedError(SnapshotError):
    """The writer process died and a replacement could not be started."""


class PortingError(PyengineError):
    """Rows that were not imported or exported; nothing was left of them. Attribute: `path`."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class SourceFormatError(PortingError):
    """What is to be imported is no file of that format, or a damaged one."""


class UnportableError(PortingError):
    """What one side has cannot be had on the other.

    Attributes: `expected` (what the side that is written to takes), `got` (what the other has).
    """

    def __init__(self, message: str, *, path: str, expected: Any, got: Any) -> None:
        super().__init__(message, path=path)
        self.expected = expected
        self.got = got


class TargetExistsError(PortingError, FileExistsError):
    """There is something under the name that was to be written; it was left as it is."""


class RestoreError(PyengineError):
    """A restore that did not happen; live objects are unchanged unless the text says otherwise."""


class ComponentMismatchError(RestoreError):
    """Saved and tracked components differ. Attributes: `not_tracked`, `not_saved` (names)."""

    def __init__(
        self, message: str, *, not_tracked: tuple[str, ...], not_saved: tuple[str, ...]
    ) -> None:
        super().__init__(message)
        self.not_tracked = not_tracked
        self.not_saved = not_saved


class StateMismatchError(RestoreError):
    """Saved state does not fit the live object.

    Attributes: `component`, `expected` (the live side), `got` (the saved side).
    """

    def __init__(self, message: str, *, component: str, expected: Any, got: Any) -> None:
        super().__init__(message)
        self.component = component
        self.expected = expected
        self.got = got


class PickleRefusedError(RestoreError):
    """A component was saved by pickle, which runs code when it is read, and nobody allowed that for
    this name. Attribute: `component`."""

    def __init__(self, message: str, *, component: str) -> None:
        super().__init__(message)
        self.component = component


class ModelMismatchError(RestoreError):
    """A library's model is not the one that the run was made with; nothing was touched.

    Attributes: `what` differs ("algorithm", "observation_space", ...), `saved`, `found`.
    """

    def __init__(self, message: str, *, what: str, saved: Any, found: Any) -> None:
        super().__init__(message)
        self.what = what
        self.saved = saved
        self.found = found


class TruncatedLogError(RestoreError):
    """A log file is shorter than at the snapshot: this start of the script began it anew.

    Attributes: `path`, `expected` and `got` (bytes).
    """

    def __init__(self, message: str, *, path: str, expected: int, got: int) -> None:
        super().__init__(message)
        self.path = path
        self.expected = expected
        self.got = got


class NothingRestorableError(RestoreError):
    """A run has, or had, snapshots and none of them can be restored; never a fresh start.

    Attribute: `refused`, pairs of (path, reason), in the order in which they were tried. Put a copy
    of a good snapshot into `snapshots/`, or begin anew with SnapshotEngine(..., fresh=True).
    """

    def __init__(self, message: str, *, refused: tuple[tuple[str, str], ...]) -> None:
        super().__init__(message)
        self.refused = refused


class WeightsOnlyError(RestoreError):
    """The snapshots that a run holds are of weights alone (milestones, say), from which training
    does not go on as it was. Attribute: `snapshots`, their names, newest first."""

    def __init__(self, message: str, *, snapshots: tuple[str, ...]) -> None:
        super().__init__(message)
        self.snapshots = snapshots


class SanityCheckError(RestoreError):
    """What was restored failed its sanity check. Live objects hold the restored state by then, so
    the engine refuses to go on until a restore succeeds."""


class FormatVersionError(RestoreError):
    """A file of a format version that is not read here. Attributes: `path`, `version`."""

    def __init__(self, message: str, *, path: str, version: int) -> None:
        super().__init__(message)
        self.path = path
        self.version = version


class MalformedFileError(RestoreError):
    """A file whose checksum holds says what cannot be: it was written so, by another program or by
    a defect, and no disk has changed it. Nothing was moved. Attributes: `path`, `offset`."""

    def __init__(self, message: str, *, path: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class DamageError(RestoreError):
    """Proven corruption of a file. Attributes: `path`, `offset` (bytes), `expected`, `got`."""

    def __init__(
        self,
        message: str,
        *,
        path: str,
        offset: int | None = None,
        expected: Any = None,
        got: Any = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.expected = expected
        self.got = got


class TruncatedFileError(DamageError):
    """A file is shorter than its record says."""


class StopRequested(SystemExit):
    """A signal asked the run to end: raised by the tick that took its last snapshot.

    No error, so no part of the tree: it passes `except Exception`, and a script that lets it
    through ends, after its `finally` and `with` blocks, with status 128 + signal (`code`).
    Attributes: `signal` (number), `step`, `info` (SnapshotInfo of the last snapshot, durable; None
    where that was not known within the grace: the writer goes on with it alone).
    """

    def __init__(self, *, signal: int, step: int, info: Any = None) -> None:
        super().__init__(128 + signal)
        self.signal = signal
        self.step = step
        self.info = info

    def __str__(self) -> str:
        saved = f"saved as {self.info.name}" if self.info else "not known to be saved"
        return f"stopped by signal {self.signal} after step {self.step}, which is {saved}"
