"""The stall of `tick` due to append fields: its share of the tick, and waits in `add` until commit.

Each tick of an engine that tracks a ring is paired with one of an engine that tracks all but the
ring, in turns; the difference is the ring's. Waits inside `add`, from the tick until the commit,
are added.
"""

from __future__ import annotations

import time

import numpy as np

import pyengine
from benchmarks.figure import Figure, Measured, Setting
from benchmarks.judgement import Finding, limit
from benchmarks.replay_run import WAIT_SECONDS, ReplayShape, make_engine
from benchmarks.statistics import summarize

FIGURE = Figure(
    name="append_stall",
    claim="stall of tick due to append fields, 1e4 to 1e6 rows, waits in add included",
)

BAR_MS = 1.0
FLAT_MS = 0.1
"""Medians of the smallest and the largest ring may differ by this much and still be flat."""

WAIT_FLOOR_NS = 100_000
"""An add of a few hundred bytes takes microseconds; longer ones count as a wait, whole."""

ADD_PAUSE_SECONDS = 0.0005
OBS_BYTES = 120
PAIRS = 150
"""Of fewer samples the 99th percentile is the largest, and tells of the machine's one hiccup."""

WARM_UPS = 3
"""The first snapshots make and touch the staging slots and persist the whole ring."""


def measure(setting: Setting) -> Measured:
    sizes = (10_000, 100_000) if setting.quick else (10_000, 100_000, 1_000_000)
    samples: dict[str, list[float]] = {}
    for rows in sizes:
        shape = ReplayShape(rows, OBS_BYTES)
        with (
            shape.make_ring() as ring,
            make_engine(setting.directory / f"{rows}", every_steps=1, budget=None) as engine,
            make_engine(setting.directory / f"{rows}-bare", every_steps=1, budget=None) as bare,
        ):
            engine.track(replay=ring, counters={"step": 0})
            bare.track(counters={"step": 0})
            stalls = _Stalls(shape, ring, engine, bare)
            stalls.measure(10 if setting.quick else PAIRS)
        samples[f"stall_{rows}_rows_ms"] = stalls.due_to_rows
        samples[f"add_wait_{rows}_rows_ms"] = stalls.waits
        samples[f"whole_tick_{rows}_rows_ms"] = stalls.whole
    medians = [summarize(samples[f"stall_{rows}_rows_ms"]).median for rows in sizes]
    p99 = max(summarize(samples[f"stall_{rows}_rows_ms"]).p99 for rows in sizes)
    text = " / ".join(f"{median:.2f}" for median in medians) + f" ms median; p99 {p99:.2f} ms"
    verdict = limit(reached=p99 < BAR_MS and medians[-1] - medians[0] < FLAT_MS)
    return Measured(
        [Finding("flat, p99 under 1 ms", text, verdict)],
        samples,
        {"rows": list(sizes), "row_bytes": shape.row_bytes},
    )


class _Stalls:
    """Milliseconds per pair of ticks: the ring's share with waits, the waits, the whole tick."""

    def __init__(
        self,
        shape: ReplayShape,
        ring: pyengine.ReplayBuffer,
        engine: pyengine.SnapshotEngine,
        bare: pyengine.SnapshotEngine,
    ) -> None:
        self.due_to_rows: list[float] = []
        self.waits: list[float] = []
        self.whole: list[float] = []
        self._shape, self._ring = shape, ring
        self._engine, self._bare = engine, bare
        self._number = shape.rows + shape.rows // 3

    def measure(self, pairs: int) -> None:
        self._shape.fill(self._ring, 0, self._number)
        for step in range(1, WARM_UPS + pairs + 1):
            self._add_slowly(100)
            if step % 2:
                without_ms = self._tick(self._bare, step)[0]
                with_ms, waited_ms = self._tick(self._engine, step)
            else:
                with_ms, waited_ms = self._tick(self._engine, step)
                without_ms = self._tick(self._bare, step)[0]
            if step > WARM_UPS:
                self.due_to_rows.append(with_ms - without_ms + waited_ms)
                self.waits.append(waited_ms)
                self.whole.append(with_ms)

    def _tick(self, engine: pyengine.SnapshotEngine, step: int) -> tuple[float, float]:
        """Tick, then add rows until the commit; return ms of the tick and of waits in add."""
        self._add_slowly(20)
        begin = time.perf_counter_ns()
        pending = engine.tick(step)
        tick_ms = (time.perf_counter_ns() - begin) / 1e6
        waited_ns = 0
        assert pending is not None, "a tick took no snapshot"
        while not pending.is_done:
            waited_ns += self._add_slowly(1)
        pending.wait(WAIT_SECONDS)
        return tick_ms, waited_ns / 1e6

    def _add_slowly(self, count: int) -> int:
        """Add single rows at the pace of an environment; return nanoseconds of waits."""
        rows = self._shape.rows_from(self._number, count)
        self._number += count
        waited_ns = 0
        for index in range(count):
            row = {name: np.ascontiguousarray(column[index]) for name, column in rows.items()}
            begin = time.perf_counter_ns()
            self._ring.add(**row)
            duration = time.perf_counter_ns() - begin
            waited_ns += duration if duration > WAIT_FLOOR_NS else 0
            time.sleep(ADD_PAUSE_SECONDS)
        return waited_ns
