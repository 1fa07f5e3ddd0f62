"""The stall of a snapshot due to append fields: the cut, and waits in `add` until the commit."""

from __future__ import annotations

import time

import numpy as np

import pyengine
from benchmarks.figure import Figure, Measured, Setting
from benchmarks.replay_run import WAIT_SECONDS, ReplayShape, make_engine
from benchmarks.statistics import summarize

FIGURE = Figure(
    name="append_stall",
    claim="stall of a snapshot due to append fields, 1e4 to 1e6 rows",
    bar_text="flat, p99 under 1 ms",
)

BAR_MS = 1.0
FLAT_MS = 0.1
"""Medians of the smallest and the largest ring may differ by this much and still be flat."""

WAIT_FLOOR_NS = 100_000
"""An add of a few hundred bytes takes microseconds; longer ones count as a wait, whole."""

ADD_PAUSE_SECONDS = 0.0005
OBS_BYTES = 120


def measure(setting: Setting) -> Measured:
    sizes = (10_000, 100_000) if setting.quick else (10_000, 100_000, 1_000_000)
    snapshots = max(10, 3 * setting.pairs)
    samples: dict[str, list[float]] = {}
    for rows in sizes:
        shape = ReplayShape(rows, OBS_BYTES)
        with shape.make_ring() as ring, make_engine(setting.directory / str(rows)) as engine:
            stalls, waits = _stalls(shape, ring, engine, snapshots)
        samples[f"stall_{rows}_rows_ms"] = stalls
        samples[f"add_wait_{rows}_rows_ms"] = waits
    medians = [summarize(samples[f"stall_{rows}_rows_ms"]).median for rows in sizes]
    p99 = max(summarize(samples[f"stall_{rows}_rows_ms"]).p99 for rows in sizes)
    text = ", ".join(f"{median:.2f}" for median in medians) + f" ms median; p99 {p99:.2f} ms"
    passed = p99 < BAR_MS and medians[-1] - medians[0] < FLAT_MS
    return Measured(passed, text, samples, {"rows": list(sizes), "row_bytes": shape.row_bytes})


def _stalls(
    shape: ReplayShape,
    ring: pyengine.ReplayBuffer,
    engine: pyengine.SnapshotEngine,
    snapshots: int,
) -> tuple[list[float], list[float]]:
    """Return, per snapshot, milliseconds of tick plus waits, and of waits alone."""
    engine.track(replay=ring, counters={"step": 0})
    shape.fill(ring, 0, shape.rows + shape.rows // 3)
    engine.snapshot(0).wait(WAIT_SECONDS)
    stalls, waits = [], []
    number = shape.rows + shape.rows // 3
    for step in range(1, snapshots + 1):
        number = _add_slowly(shape, ring, number, 100)[0]
        begin = time.perf_counter_ns()
        pending = engine.snapshot(step)
        tick_ns = time.perf_counter_ns() - begin
        waited_ns = 0
        while not pending.is_done:
            number, waited = _add_slowly(shape, ring, number, 1)
            waited_ns += waited
        pending.wait(WAIT_SECONDS)
        stalls.append((tick_ns + waited_ns) / 1e6)
        waits.append(waited_ns / 1e6)
    return stalls, waits


def _add_slowly(
    shape: ReplayShape, ring: pyengine.ReplayBuffer, number: int, count: int
) -> tuple[int, int]:
    """Add single rows at the pace of an environment; return the next number and ns of waits."""
    rows = shape.rows_from(number, count)
    waited_ns = 0
    for index in range(count):
        row = {name: np.ascontiguousarray(column[index]) for name, column in rows.items()}
        begin = time.perf_counter_ns()
        ring.add(**row)
        duration = time.perf_counter_ns() - begin
        waited_ns += duration if duration > WAIT_FLOOR_NS else 0
        time.sleep(ADD_PAUSE_SECONDS)
    return number + count, waited_ns
