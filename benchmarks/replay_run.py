"""Rings of known rows, and runs that hold one, for the figures that read or write a replay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import pyengine
from pyengine.format.segment import plan_layout, round_to_page, segment_rows

FILL_BYTES = 16 * 1024 * 1024
WAIT_SECONDS = 300.0
SETUP_SECONDS = 0.5
"""For the writer process to come up: a script makes networks and environments meanwhile."""


@dataclass(frozen=True, slots=True)
class ReplayShape:
    """A ring of `rows` transitions whose obs and next_obs take `obs_bytes` each."""

    rows: int
    obs_bytes: int

    def schema(self) -> pyengine.Schema:
        obs = ((self.obs_bytes,), "uint8")
        return pyengine.Schema(
            {"obs": obs, "next_obs": obs, "action": "int64", "reward": "float32",
             "terminated": "bool", "truncated": "bool"}
        )  # fmt: skip

    @property
    def row_bytes(self) -> int:
        return self.schema().row_bytes

    def make_ring(self, seed: int = 1) -> pyengine.ReplayBuffer:
        return pyengine.ReplayBuffer(self.schema(), capacity=self.rows, seed=seed)

    def rows_from(self, first: int, count: int) -> dict[str, np.ndarray]:
        """Return `count` rows whose contents follow from their number and do not compress."""
        numbers = np.arange(first, first + count)
        noise = np.random.default_rng(first).integers(0, 256, self.obs_bytes, np.uint8)
        frames = noise[None, :] + (numbers[:, None] % 251).astype(np.uint8)
        return {
            "obs": frames,
            "next_obs": frames + np.uint8(1),
            "action": numbers,
            "reward": numbers.astype(np.float32),
            "terminated": numbers % 100 == 99,
            "truncated": np.zeros(count, bool),
        }

    def fill(self, ring: pyengine.ReplayBuffer, first: int, count: int) -> None:
        """Add rows [first, first + count)."""
        chunk = max(1, FILL_BYTES // self.row_bytes)
        for begin in range(first, first + count, chunk):
            ring.extend(**self.rows_from(begin, min(chunk, first + count - begin)))

    def needed_bytes(self, refs: np.ndarray) -> int:
        return needed_bytes(self.schema(), self.rows, refs)


def needed_bytes(schema: pyengine.Schema, capacity: int, refs: np.ndarray) -> int:
    """Return the bytes of a one-lane ring's segment files that `refs` cannot do without.

    Those are the distinct blocks that hold the rows, the header and the block table of each segment
    touched, all in whole pages.
    """
    per_segment = segment_rows(schema.row_bytes, capacity)
    layout = plan_layout(schema.append_fields, per_segment)
    refs = np.unique(refs)
    table_bytes = layout.file_bytes - layout.block_table_offset
    total = len(np.unique(refs // per_segment)) * (layout.header_bytes + table_bytes)
    for field in layout.fields:
        blocks = len(np.unique(refs >> field.block_shift))
        whole = min(field.row_bytes << field.block_shift, field.region_bytes)
        total += blocks * round_to_page(whole)
    return total


def make_engine(directory: Path, **settings: object) -> pyengine.SnapshotEngine:
    """Return an engine that saves only when asked. The constructor checks the settings."""
    return pyengine.SnapshotEngine(directory, **{"keep_last": 2, **settings})  # type: ignore[arg-type]


def build_run(directory: Path, shape: ReplayShape) -> None:
    """Make a run with one committed snapshot of a full, wrapped ring."""
    with shape.make_ring() as ring, make_engine(directory) as engine:
        engine.track(replay=ring, counters={"step": 0})
        shape.fill(ring, 0, shape.rows + shape.rows // 3)
        engine.snapshot(1).wait(WAIT_SECONDS)
