"""One life of a run in test_memory_limited: memory_limited_child.py LIFE RUN LIMIT [CGROUP]

Joins the memory cgroup first, so that the ring, the mapped segments, the writer and everything
imported are charged to it. LIMIT is the ring's own, in bytes; 0: none. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__" and len(sys.argv) > 4:
    (Path(sys.argv[4]) / "cgroup.procs").write_text(str(os.getpid()))

import numpy as np

import pyengine

ROWS = 65_536
WORDS = 4_096
ROW_BYTES = 4 * WORDS + 8
OVERWRITTEN = ROWS // 10
CHUNK = 512
SAMPLE = 256
WAIT_SECONDS = 100.0


def make_ring(limit_bytes: int) -> pyengine.ReplayBuffer:
    schema = pyengine.Schema({"number": "int64", "payload": ((WORDS,), "uint32")})
    return pyengine.ReplayBuffer(schema, capacity=ROWS, seed=3, memory_limit=limit_bytes or None)


def add_rows(ring: pyengine.ReplayBuffer, first: int, count: int) -> None:
    for begin in range(first, first + count, CHUNK):
        numbers = np.arange(begin, min(begin + CHUNK, first + count))
        payload = np.repeat(numbers.astype(np.uint32)[:, None], WORDS, axis=1)
        ring.extend(number=numbers, payload=payload)


def all_rows_correct(ring: pyengine.ReplayBuffer, first: int) -> bool:
    """Whether the ring holds exactly rows [first, first + ROWS), oldest first, every word right."""
    refs = ring.refs()
    expected = np.arange(first, first + ROWS)
    correct = len(refs) == ROWS
    for begin in range(0, ROWS, CHUNK):
        rows = ring[refs[begin : begin + CHUNK]]
        numbers = expected[begin : begin + CHUNK]
        correct &= bool((rows["number"] == numbers).all())
        correct &= bool((rows["payload"] == numbers[:, None]).all())
    return correct


def private_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def build(ring: pyengine.ReplayBuffer, engine: pyengine.SnapshotEngine) -> dict[str, Any]:
    engine.restore()
    for first in range(0, ROWS, ROWS // 8):
        add_rows(ring, first, ROWS // 8)
        batch = ring.sample(SAMPLE)
        assert (batch["payload"] == batch["number"][:, None]).all()
    return {"snapshot": engine.snapshot(1).wait(WAIT_SECONDS).name}


def carry_on(ring: pyengine.ReplayBuffer, engine: pyengine.SnapshotEngine) -> dict[str, Any]:
    before = private_bytes()
    report = engine.restore()
    batch = ring.sample(SAMPLE)
    private = private_bytes() - before
    sample_correct = bool((batch["payload"] == batch["number"][:, None]).all())
    add_rows(ring, ROWS, OVERWRITTEN)
    return {
        "restored": bool(report),
        "rows": len(ring),
        "private_bytes_of_restore": private,
        "sample_correct": sample_correct,
        "snapshot": engine.snapshot(2).wait(WAIT_SECONDS).name,
    }


def check(ring: pyengine.ReplayBuffer, engine: pyengine.SnapshotEngine) -> dict[str, Any]:
    report = engine.restore()
    return {
        "next_step": report.next_step,
        "correct": all_rows_correct(ring, OVERWRITTEN),
        "total_count": int(ring.total_count),
    }


def main() -> None:
    lives = {"build": build, "carry_on": carry_on, "check": check}
    ring = make_ring(int(sys.argv[3]))
    with ring, pyengine.SnapshotEngine(sys.argv[2], keep_last=3) as engine:
        engine.track(replay=ring, counters={"step": 0})
        result = lives[sys.argv[1]](ring, engine)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
