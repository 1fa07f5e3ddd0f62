"""What came out of a measurement, as plain values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyengine.cli.measure.hardware import Disk, Resident
from pyengine.cli.measure.windows import Windows
from pyengine.cli.measure.workload import Workload

BUDGET = 0.1
"""The default `budget` of an engine."""

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and the 95 % interval of it, from the order of the samples alone."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Interval:
        """Describe at least six samples: the range of fewer holds the median less often.

        The interval lies between the k-th smallest and the k-th largest, for the largest k with
        P(Binomial(n, 1/2) < k) <= 2.5 % (David and Nagaraja, Order Statistics, 7.1).
        """
        ordered, tail, below = sorted(samples), 0.0, 0
        while tail + math.comb(len(ordered), below) / 2 ** len(ordered) <= (1 - _CONFIDENCE) / 2:
            tail += math.comb(len(ordered), below) / 2 ** len(ordered)
            below += 1
        if below == 0:
            raise ValueError(f"{len(ordered)} samples are too few for an interval")
        return cls(statistics.median(ordered), ordered[below - 1], ordered[-below])


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 99th percentile of `count` samples; of fewer than 100 that is the largest."""

    p50: float
    p99: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Describe at least one sample; the percentile is a sample (nearest rank)."""
        ordered = sorted(samples)
        rank = math.ceil(0.99 * len(ordered))
        return cls(statistics.median(ordered), ordered[rank - 1], len(ordered))


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one workload. Seconds and bytes; a share is of the whole training time.

    `interval_steps` is what `lost_share` and `lost_seconds_per_step` are for: `every_steps`, or
    more where the disk does not take snapshots as often. `budget_steps` is how far apart an engine
    with its default budget keeps them. `new_rows` is the median of the rows that a snapshot brings.
    """

    row_bytes: int
    capacity: int
    ring_bytes: int
    state_bytes: int
    every_steps: int
    interval_steps: int
    budget_steps: int
    rounds: int
    window_steps: int
    unfinished: int
    step_seconds: float
    stall_seconds: Spread
    lost_share: Interval
    lost_seconds_per_step: Interval
    lost_seconds_per_snapshot: Interval
    persist_seconds: Spread
    new_rows: int
    bytes_per_snapshot: int
    bytes_per_new_row: float
    restore_seconds: Spread
    first_batch_seconds: Spread
    trainer: Resident
    writer: Resident
    disk: Disk

    @classmethod
    def of(
        cls,
        workload: Workload,
        windows: Windows,
        *,
        ring_bytes: int,
        state_bytes: int,
        trainer: Resident,
        writer: Resident,
        restores: Sequence[tuple[float, float]],
        disk: Disk,
    ) -> Figures:
        """Make the figures; `restores` are seconds of each restore, and until its first batch."""
        plain, tracked, saved = windows.seconds.values()
        step = statistics.median(plain) / windows.steps
        persist = Spread.of(windows.persist_seconds)
        stall = Spread.of(windows.stall_seconds)
        apart = max(workload.every_steps, math.ceil(persist.p50 / step))
        per_snapshot = [s - t for s, t in zip(saved, tracked, strict=True)]
        per_step = [
            (t - p) / windows.steps + snapshot / apart
            for p, t, snapshot in zip(plain, tracked, per_snapshot, strict=True)
        ]
        # Of one round each, so that what the machine does to all three windows cancels.
        shares = [
            lost / (p / windows.steps + lost) for lost, p in zip(per_step, plain, strict=True)
        ]
        new_rows = round(statistics.median(windows.new_rows))
        return cls(
            row_bytes=workload.schema.row_bytes,
            capacity=workload.capacity,
            ring_bytes=ring_bytes,
            state_bytes=state_bytes,
            every_steps=workload.every_steps,
            interval_steps=apart,
            budget_steps=math.ceil(max(persist.p50, stall.p50) / BUDGET / step),
            rounds=windows.rounds,
            window_steps=windows.steps,
            unfinished=windows.unfinished,
            step_seconds=step,
            stall_seconds=stall,
            lost_share=Interval.of(shares),
            lost_seconds_per_step=Interval.of(per_step),
            lost_seconds_per_snapshot=Interval.of(per_snapshot),
            persist_seconds=persist,
            new_rows=new_rows,
            bytes_per_snapshot=round(statistics.median(windows.written_bytes)),
            bytes_per_new_row=sum(windows.row_file_bytes) / max(1, sum(windows.new_rows)),
            restore_seconds=Spread.of([seconds for seconds, _ in restores]),
            first_batch_seconds=Spread.of([seconds for _, seconds in restores]),
            trainer=trainer,
            writer=writer,
            disk=disk,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        return asdict(self)
