"""One cold resume in a process of its own: python -m benchmarks.cold_child RUN ROWS OBS_BYTES BATCH
WATCH_SECONDS

Prints one JSON line. Before the clock starts imports are done, the engine has claimed the run, and
its writer has had a second to come up: the time in which a real script makes networks and
environments. Then the page cache is dropped, in here, so that only the run's own files are cold.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.disk import drop_page_cache
from benchmarks.process import private_bytes
from benchmarks.replay_run import ReplayShape, make_engine

SETUP_SECONDS = 1.0


def main() -> None:
    run_dir, rows, obs_bytes, batch_size, watch_seconds = sys.argv[1:6]
    shape = ReplayShape(int(rows), int(obs_bytes))
    with shape.make_ring() as ring, make_engine(Path(run_dir)) as engine:
        engine.track(replay=ring, counters={"step": 0})
        time.sleep(SETUP_SECONDS)
        dropped = drop_page_cache(Path(run_dir))
        before = private_bytes()
        begin = time.perf_counter()
        report = engine.restore()
        restored = time.perf_counter()
        batch = ring.sample(int(batch_size))
        sampled = time.perf_counter()
        ends = [sampled]
        while ends[-1] < sampled + float(watch_seconds):
            ring.sample(int(batch_size))
            ends.append(time.perf_counter())
        result = {
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
