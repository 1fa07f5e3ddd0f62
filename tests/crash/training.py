"""A run so small that a restore takes milliseconds, whose every value follows from the step.

Two lanes of 16 rows in segments of 4, a mutable field, arrays in place of a model, counters, a
generator. What a snapshot of step s must bring back can be computed without one.
"""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

import numpy as np

import pyengine

LANES = 2
ROWS_PER_LANE = 16
WEIGHTS = 3000


class Training:
    """The objects that an engine tracks; `step` makes one step of training."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.weights = np.zeros(WEIGHTS, np.float32)
        self.moments = {"mean": np.zeros(40, np.float64), "count": np.zeros((), np.int64)}
        self.counters = {"updates": 0, "epsilon": 1.0}
        self.rng = np.random.default_rng(seed)
        schema = pyengine.Schema(
            {
                "number": ((), "int64"),
                "obs": ((6,), "float32"),
                "priority": pyengine.Field((), "float32", mutable=True, default=1.0),
            }
        )
        self.ring = pyengine.ReplayBuffer(
            schema, capacity=LANES * ROWS_PER_LANE, num_envs=LANES, seed=seed
        )

    def track(self, engine: pyengine.SnapshotEngine) -> None:
        engine.track(
            weights=self.weights,
            moments=self.moments,
            counters=self.counters,
            explorer=self.rng,
            replay=self.ring,
        )

    def step(self, step: int) -> None:
        """Insert a row a lane, sample, change everything else."""
        number = np.arange(LANES, dtype=np.int64) + step * LANES
        obs = self.rng.standard_normal((LANES, 6)).astype(np.float32)
        self.ring.add(number=number, obs=obs)
        batch = self.ring.sample(4)
        priority = batch["number"].astype(np.float32) + step
        self.ring.update(batch.indices, priority=priority)
        self.weights += np.float32(0.5) * obs[0, 0] + np.float32(step)
        self.moments["mean"] += obs[1, :].sum()
        self.moments["count"] += 1
        self.counters["updates"] += 1
        self.counters["epsilon"] *= 0.99

    def digest(self) -> str:
        """Return a hash of every value: rows, their window and priorities, generators."""
        rows = self.ring[self.ring.refs()]
        record = {
            "counters": self.counters,
            "explorer": str(self.rng.bit_generator.state),
            "sampler": str(self.ring.header_record()["sampler"]),
            "window": [np.asarray(self.ring.tail).tolist(), str(self.ring.total_count)],
        }
        digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
        values: list[Any] = [self.weights, *self.moments.values()]
        values += [rows[name] for name in self.ring.schema]
        for value in values:
            digest.update(np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        self.ring.close()


@functools.cache
def expected_digests(seed: int, steps: int) -> tuple[str, ...]:
    """Return the digest after each of the steps 0 .. steps - 1, trained without an engine."""
    training = Training(seed)
    digests = []
    for step in range(steps):
        training.step(step)
        digests.append(training.digest())
    training.close()
    return tuple(digests)
