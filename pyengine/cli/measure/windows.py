"""The same few steps of training three ways, in turns: what each way adds is its cost.

    plain      no engine; rows go into a ring that nobody saves
    tracked    an engine ticks, and its writer brings full segments to disk; no snapshot
    snapshot   the same, and a snapshot at the beginning

A window is long enough for a snapshot to be durable within it, so that what the writer takes of the
machine counts as well as the stall. Nobody waits for as many steps as lie between two snapshots:
tracked less plain is the cost of a row, snapshot less tracked that of a snapshot. Before a window
with a snapshot the rows of the steps that were left out are added, and brought to disk.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyengine.cli.measure.learner import BATCH, Learner, Noise
from pyengine.cli.measure.workload import LEAST_ROUNDS, WAYS, Workload
from pyengine.engine.engine import SnapshotEngine
from pyengine.engine.pending import PendingSnapshot
from pyengine.errors import SnapshotFailedError
from pyengine.replay.ring import ReplayBuffer
from pyengine.shm.states import SlotState

_MOST_ROUNDS = 200
_MEASURE_SECONDS = 40.0
_LEAST_SECONDS = 0.1
_ROOM = 1.5
_WARM_UPS = 2
_CALIBRATION_STEPS = 3
_CALIBRATION_SECONDS = 0.5
_WAIT_SECONDS = 600.0
_POLL_SECONDS = 0.005
_UNSAVED = (SlotState.SEALED, SlotState.PERSISTING, SlotState.WRITTEN)


@dataclass(slots=True)
class Windows:
    """Seconds of each window by its way, one a round, and what became of each round's snapshot."""

    steps: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    stall_seconds: list[float] = field(default_factory=list)
    persist_seconds: list[float] = field(default_factory=list)
    written_bytes: list[int] = field(default_factory=list)
    row_file_bytes: list[int] = field(default_factory=list)
    new_rows: list[int] = field(default_factory=list)
    unfinished: int = 0
    """How many snapshots were not durable when their window ended."""

    @property
    def rounds(self) -> int:
        return len(self.stall_seconds)


class Training:
    """The loop, its ring, and an engine that tracks both; owns none of them.

    `rows` are what one step adds; `spare` is the ring of plain windows.
    """

    def __init__(
        self,
        workload: Workload,
        engine: SnapshotEngine,
        ring: ReplayBuffer,
        spare: ReplayBuffer,
        learner: Learner,
        rows: Iterator[dict[str, Any]],
    ) -> None:
        self._workload = workload
        self._engine = engine
        self._ring, self._spare = ring, spare
        self._learner = learner
        self._rows = rows
        self._noise = Noise(workload.schema)
        self._step = 0
        self._added = 0

    def prepare(self) -> None:
        """Fill the ring and take the first snapshots, which make the staging memory, and bring the
        whole ring to disk."""
        self._fill(self._workload.capacity)
        self._engine.tick(self._step)  # hands the ring over
        for _ in range(_WARM_UPS):
            self._save_once()

    def plan(self) -> tuple[int, int]:
        """Return the steps of a window and the number of rounds; times a snapshot and steps."""
        begin = time.perf_counter()
        durable_seconds = self._save_once()
        beside_seconds = time.perf_counter() - begin
        self._window("plain", _CALIBRATION_STEPS)
        begin, count = time.perf_counter(), 0
        while count < _CALIBRATION_STEPS or time.perf_counter() < begin + _CALIBRATION_SECONDS:
            self._window("plain", 1)
            count += 1
        step_seconds = (time.perf_counter() - begin) / count
        steps = math.ceil(max(_LEAST_SECONDS, _ROOM * durable_seconds) / step_seconds)
        wanted = self._workload.steps
        if wanted is None:
            round_seconds = len(WAYS) * steps * step_seconds + beside_seconds
            rounds = int(_MEASURE_SECONDS / round_seconds)
            return steps, min(_MOST_ROUNDS, max(LEAST_ROUNDS, rounds))
        steps = min(steps, wanted // (len(WAYS) * LEAST_ROUNDS))
        return steps, wanted // (len(WAYS) * steps)

    def measure(self, steps: int, rounds: int, on_round: Callable[[int], None]) -> Windows:
        """Measure `rounds` windows of each way, of `steps` steps; the order changes each time.

        `on_round` is called with the number of rounds that are done.
        """
        found = Windows(steps)
        for number in range(rounds):
            for way in reversed(WAYS) if number % 2 else WAYS:
                if way == "snapshot":
                    self._fill(self._workload.every_steps - self._added)
                self._await_segments()
                seconds, pending = self._window(way, steps)
                found.seconds[way].append(seconds)
                if pending is not None:
                    self._note(found, pending)
            on_round(number + 1)
        return found

    def _window(self, way: str, steps: int) -> tuple[float, PendingSnapshot | None]:
        """Make the steps; return their seconds and the snapshot that was taken, if any."""
        engine = None if way == "plain" else self._engine
        ring = self._spare if engine is None else self._ring
        pending = None
        begin = time.perf_counter()
        if way == "snapshot":
            pending = self._engine.snapshot(self._step)
        for _ in range(steps):
            ring.add(next(self._rows))
            self._learn()
            if engine is not None:
                self._step += 1
                engine.tick(self._step)
        seconds = time.perf_counter() - begin
        self._added += 0 if engine is None else steps
        return seconds, pending

    def _note(self, found: Windows, pending: PendingSnapshot) -> None:
        found.unfinished += not pending.is_done
        info = pending.wait(_WAIT_SECONDS)
        outcome = pending.outcome
        assert outcome is not None
        own = sum(file.size_bytes for file in info.files if not file.path.endswith(".seg"))
        found.stall_seconds.append(pending.stall_seconds)
        found.persist_seconds.append(outcome.persist_ns / 1e9)
        found.written_bytes.append(outcome.bytes_written)
        found.row_file_bytes.append(outcome.bytes_written - own)
        found.new_rows.append(self._added - found.steps)
        self._added = found.steps

    def _save_once(self) -> float:
        """Take a snapshot as those that are measured; return seconds until it is durable."""
        self._fill(self._workload.every_steps - self._added)
        self._await_segments()
        self._learn()
        begin = time.perf_counter()
        self._engine.snapshot(self._step).wait(_WAIT_SECONDS)
        self._step += 1
        self._added = 0
        return time.perf_counter() - begin

    def _learn(self) -> None:
        self._learner.learn(self._ring.sample(BATCH, device="cpu"))

    def _fill(self, count: int) -> None:
        """Add rows at once: at most as many as the ring keeps."""
        count = max(0, min(count, self._workload.capacity))
        for block in self._noise.blocks(count):
            self._ring.extend(block)
        self._added += count

    def _await_segments(self) -> None:
        """Wait until the writer has brought every full segment to disk."""
        deadline = time.monotonic() + _WAIT_SECONDS
        control = self._ring.control
        assert control is not None
        while any(control.slots_in(state) for state in _UNSAVED):
            if time.monotonic() > deadline:
                raise SnapshotFailedError(
                    f"the writer has not brought the rows to disk within {_WAIT_SECONDS:.0f} s: "
                    "the disk is too slow to measure on, or the writer is stopped"
                )
            time.sleep(_POLL_SECONDS)
            self._engine.tick(self._step)  # replaces a writer that died
