"""One process of test_no_space: python no_space_child.py WHAT RUN [CGROUP]; prints one JSON line.

Where shared memory is to be small, it runs in a mount namespace or a memory cgroup of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__" and len(sys.argv) > 3:
    (Path(sys.argv[3]) / "cgroup.procs").write_text(str(os.getpid()))

import numpy as np

import pyengine
from pyengine import errors

MIB = 1 << 20
WAIT_SECONDS = 60.0
ROW = ((MIB,), "uint8")


def told(error: errors.SharedMemoryError) -> dict[str, Any]:
    return {"type": type(error).__name__, "needed": error.needed_bytes, "free": error.free_bytes}


def rows(first: int, count: int) -> dict[str, Any]:
    numbers = np.arange(first, first + count)
    return {"number": numbers, "payload": np.repeat(numbers.astype(np.uint8)[:, None], MIB, 1)}


def fill(ring: pyengine.ReplayBuffer, count: int) -> errors.SharedMemoryError | None:
    """Add rows of 1 MiB until memory ends, at most `count`."""
    for number in range(count):
        try:
            ring.extend(rows(number, 1))
        except errors.SharedMemoryError as error:
            return error
    return None


def all_rows_correct(ring: pyengine.ReplayBuffer) -> bool:
    refs = ring.refs()
    correct = True
    for number in range(len(refs)):  # one by one: there is no memory for all of them at once
        row = ring[refs[number : number + 1]]
        correct &= bool(row["number"][0] == number)
        correct &= bool((row["payload"] == np.uint8(number % 256)).all())
    return correct


def memory_ends(run: str) -> dict[str, Any]:
    """A ring larger than what there is, whose rows have no files to go to."""
    with pyengine.ReplayBuffer({"number": "int64", "payload": ROW}, 2048) as ring:
        error = fill(ring, 2048)
        assert error is not None
        fill_on(ring)  # refused again, or added where the kernel has dropped some cache meanwhile
        return {**told(error), "rows": len(ring), "correct": all_rows_correct(ring)}


def large_state(run: str) -> dict[str, Any]:
    """200 MiB of state beside a /dev/shm of 64 MiB."""
    state = np.arange(25 * MIB, dtype=np.float64)
    with pyengine.SnapshotEngine(run) as engine:
        engine.track(state=state)
        engine.restore()
        name = engine.snapshot(1).wait(WAIT_SECONDS).name
    state[:] = 0
    with pyengine.SnapshotEngine(run) as engine:
        engine.track(state=state)
        engine.restore()
    return {"snapshot": name, "correct": bool((state == np.arange(25 * MIB)).all())}


def too_large_state(run: str) -> dict[str, Any]:
    """A snapshot that there is no memory to stage: an error, and the loop goes on."""
    small, large = np.ones(10), np.zeros(25 * MIB)  # never touched: it takes no memory by itself
    with pyengine.SnapshotEngine(run) as engine:
        engine.track(small=small)
        engine.restore()
        before = engine.snapshot(1).wait(WAIT_SECONDS).name
        engine.track(large=large)
        try:
            engine.snapshot(2)
            return {"type": "none"}
        except errors.SharedMemoryError as error:
            raised = told(error)
        assert engine.tick(3) is None
    with pyengine.SnapshotEngine(run) as engine:
        engine.track(small=small)
        step = engine.restore().global_step
    return {**raised, "snapshot": before, "step": step}


def sparse_fields(run: str) -> dict[str, Any]:
    """More than 4 GiB of a field that is hardly filled; and of one that must be there whole."""
    schema = pyengine.Schema({"number": "int64", "payload": ROW})
    with pyengine.ReplayBuffer(schema, 6000) as ring, pyengine.SnapshotEngine(run) as engine:
        engine.track(replay=ring)
        engine.restore()
        ring.extend(rows(0, 5))
        whole = ring.whole_bytes
        taken = ring.storage.arena.taken_bytes
        name = engine.snapshot(1).wait(WAIT_SECONDS).name
    mutable = pyengine.Field((MIB,), "uint8", mutable=True, default=1)
    with pyengine.ReplayBuffer({"number": "int64", "flags": mutable}, 6000) as ring:
        try:
            ring.add(number=0)
            return {"type": "none"}
        except errors.SharedMemoryError as error:
            return {**told(error), "whole": whole, "taken": taken, "snapshot": name}


def shm_ends(run: str) -> dict[str, Any]:
    """Somebody else takes the rest of /dev/shm, and gives it back; rows have files to go to."""
    schema = pyengine.Schema({"number": "int64", "payload": ROW})
    with pyengine.ReplayBuffer(schema, 48) as ring, pyengine.SnapshotEngine(run) as engine:
        engine.track(replay=ring)
        engine.restore()
        ring.extend(rows(0, 8))
        with the_rest_of_shm():
            errors_met = [fill_on(ring) for _ in range(32)]
            engine.snapshot(1).wait(WAIT_SECONDS)
        ring.extend(rows(len(ring), 8))
        refused = sum(error is not None for error in errors_met)
        return {"refused": refused, "rows": len(ring), "correct": all_rows_correct(ring)}


def shm_ends_alone(run: str) -> dict[str, Any]:
    """The same without an engine."""
    with pyengine.ReplayBuffer({"number": "int64", "payload": ROW}, 48) as ring:
        ring.extend(rows(0, 8))
        with the_rest_of_shm():
            error = None
            while error is None:
                error = fill_on(ring)
        ring.extend(rows(len(ring), 1))
        return {**told(error), "correct": all_rows_correct(ring)}


@contextlib.contextmanager
def the_rest_of_shm() -> Iterator[None]:
    with open("/dev/shm/other", "wb") as other:
        take_the_rest(other.fileno())
        try:
            yield
        finally:
            os.unlink("/dev/shm/other")


def take_the_rest(fd: int) -> None:
    taken = 0
    with contextlib.suppress(OSError):
        while True:
            os.posix_fallocate(fd, taken, 4096)
            taken += 4096


def fill_on(ring: pyengine.ReplayBuffer) -> errors.SharedMemoryError | None:
    try:
        ring.extend(rows(len(ring), 1))
    except errors.SharedMemoryError as error:
        return error
    return None


def main() -> None:
    lives = (shm_ends, shm_ends_alone, memory_ends, large_state, too_large_state, sparse_fields)
    chosen = {life.__name__: life for life in lives}[sys.argv[1]]
    print(json.dumps(chosen(sys.argv[2])))


if __name__ == "__main__":
    main()
