"""Ticks of an engine that tracks a ring, each paired with one of an engine that tracks all but it.

The difference is what the rows cost the trainer. Waits inside `add`, from the tick until the
commit, are added to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import pyengine
from benchmarks.replay_run import WAIT_SECONDS, ReplayShape, make_engine

WAIT_FLOOR_NS = 100_000
"""An add of a few hundred bytes takes microseconds; longer ones count as a wait, whole."""

ADD_PAUSE_SECONDS = 0.0005
ADDED_BEFORE = 20
"""Rows that come in before each pair, and before each tick of it."""

WARM_UPS = 3
"""The first snapshots make and touch the staging slots and persist the whole ring."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick that took a snapshot: its milliseconds, processor time of all threads of the trainer
    in it, and waits in `add` until the commit."""

    wall_ms: float
    cpu_ms: float
    waited_ms: float
    persist_ms: float
    written_bytes: int


@dataclass(slots=True)
class PairedTicks:
    """The ticks of one ring; milliseconds a pair. Made by `paired_ticks`."""

    shape: ReplayShape
    ring: pyengine.ReplayBuffer
    engine: pyengine.SnapshotEngine
    bare: pyengine.SnapshotEngine
    due_to_rows: list[float] = field(default_factory=list)
    cpu_due_to_rows: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    persists: list[float] = field(default_factory=list)
    written_bytes: list[int] = field(default_factory=list)
    _number: int = 0
    _step: int = 0

    def warm_up(self) -> None:
        """Fill the ring until it has wrapped, and take the first snapshots."""
        self._number = self.shape.rows + self.shape.rows // 3
        self.shape.fill(self.ring, 0, self._number)
        for _ in range(WARM_UPS):
            self._pair()

    def measure(self) -> None:
        """Make one pair of ticks, the other one first each time."""
        without, with_rows = self._pair()
        rows_ms = with_rows.wall_ms - without.wall_ms
        self.due_to_rows.append(rows_ms + with_rows.waited_ms)
        self.cpu_due_to_rows.append(with_rows.cpu_ms - without.cpu_ms)
        self.waits.append(with_rows.waited_ms)
        self.whole.append(with_rows.wall_ms)
        self.persists.append(with_rows.persist_ms)
        self.written_bytes.append(with_rows.written_bytes)

    def _pair(self) -> tuple[Tick, Tick]:
        """Return a tick without the ring and one with it."""
        self._add_slowly(ADDED_BEFORE)
        self._step += 1
        engines = (self.bare, self.engine)
        ticks = [self._tick(engine) for engine in (engines if self._step % 2 else engines[::-1])]
        without, with_rows = ticks if self._step % 2 else ticks[::-1]
        return without, with_rows

    def _tick(self, engine: pyengine.SnapshotEngine) -> Tick:
        """Tick, then add rows until the commit."""
        self._add_slowly(ADDED_BEFORE)
        cpu_begin, begin = time.process_time_ns(), time.perf_counter_ns()
        pending = engine.tick(self._step)
        end, cpu_end = time.perf_counter_ns(), time.process_time_ns()
        waited_ns = 0
        assert pending is not None, "a tick took no snapshot"
        while not pending.is_done:
            waited_ns += self._add_slowly(1)
        pending.wait(WAIT_SECONDS)
        outcome = pending.outcome
        assert outcome is not None
        return Tick(
            (end - begin) / 1e6,
            (cpu_end - cpu_begin) / 1e6,
            waited_ns / 1e6,
            outcome.persist_ns / 1e6,
            outcome.bytes_written,
        )

    def _add_slowly(self, count: int) -> int:
        """Add single rows at the pace of an environment; return nanoseconds of waits."""
        rows = self.shape.rows_from(self._number, count)
        self._number += count
        waited_ns = 0
        for index in range(count):
            row = {name: np.ascontiguousarray(column[index]) for name, column in rows.items()}
            begin = time.perf_counter_ns()
            self.ring.add(**row)
            duration = time.perf_counter_ns() - begin
            waited_ns += duration if duration > WAIT_FLOOR_NS else 0
            time.sleep(ADD_PAUSE_SECONDS)
        return waited_ns


def balanced(pairs: Sequence[float]) -> list[float]:
    """Return the means of each two pairs, one in either order.

    The tick that comes second is quicker, by about what is to be measured (0.1 ms, 2026-11-30).
    """
    return [(one + other) / 2 for one, other in zip(pairs[::2], pairs[1::2], strict=False)]


@contextmanager
def paired_ticks(directory: Path, shape: ReplayShape) -> Iterator[PairedTicks]:
    """Make a ring of a shape and two engines with runs below `directory`."""
    with (
        shape.make_ring() as ring,
        make_engine(directory / f"{shape.rows}", every_steps=1, budget=None) as engine,
        make_engine(directory / f"{shape.rows}-bare", every_steps=1, budget=None) as bare,
    ):
        engine.track(replay=ring, counters={"step": 0})
        bare.track(counters={"step": 0})
        yield PairedTicks(shape, ring, engine, bare)
