"""One cold resume in a process of its own: python -m benchmarks.cold_child RUN ROWS OBS_BYTES BATCH
WATCH_SECONDS IS_COLD

Prints one JSON line. Before the clock starts imports are done, the engine has claimed the run, and
its writer has had time to come up: that in which a real script makes networks and environments.
Then the page cache is dropped, in here; what the caller holds of the libraries stays, so that the
run's own files alone are cold. Watched, it samples and ticks as a loop does until all is verified
and a moment longer, at most so long.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyengine
from benchmarks.disk import drop_page_cache
from benchmarks.process import private_bytes, report_problems_only
from benchmarks.replay_run import SETUP_SECONDS, ReplayShape, make_engine

AFTER_SECONDS = 1.5
"""So long it is watched at full speed."""


class Watch:
    """Sees whether every block of a ring's mapped files was verified."""

    def __init__(self, ring: pyengine.ReplayBuffer) -> None:
        storage = ring.storage
        assert storage is not None
        self._control = storage.control
        self._blocks = storage.plan.layout.block_count
        self._left = sorted(storage.paths)

    def is_warm(self) -> bool:
        while self._left and self._control.is_verified(*self._left[0], 0, self._blocks):
            self._left.pop(0)
        return not self._left


def main() -> None:
    report_problems_only()
    run_dir, rows, obs_bytes, batch_size, watch_seconds, is_cold = sys.argv[1:7]
    shape = ReplayShape(int(rows), int(obs_bytes))
    with shape.make_ring() as ring, make_engine(Path(run_dir)) as engine:
        engine.track(replay=ring, counters={"step": 0})
        time.sleep(SETUP_SECONDS)
        dropped = drop_page_cache(Path(run_dir)) if is_cold == "1" else "kept"
        before = private_bytes()
        begin = time.perf_counter()
        report = engine.restore()
        restored = time.perf_counter()
        batch = ring.sample(int(batch_size))
        sampled = time.perf_counter()
        ends, warmed, watch = [sampled], None, Watch(ring)
        until = sampled + float(watch_seconds)
        while ends[-1] < until:
            engine.tick(report.next_step + len(ends))
            ring.sample(int(batch_size))
            ends.append(time.perf_counter())
            if warmed is None and watch.is_warm():
                warmed = ends[-1] - begin
                until = min(until, ends[-1] + AFTER_SECONDS)
        result = {
            "warmed_s": warmed,
            "batch_ends_s": [end - begin for end in ends],
            "restore_seconds": restored - begin,
            "first_batch_seconds": sampled - begin,
            "private_bytes_before": before,
            "private_bytes_after": private_bytes(),
            "needed_bytes": shape.needed_bytes(batch.indices),
            "touched_bytes": int(batch_size) * shape.row_bytes,
            "rows": len(ring),
            "dropped": dropped,
            "correct": bool(report) and bool((batch["reward"] == batch["action"]).all()),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
