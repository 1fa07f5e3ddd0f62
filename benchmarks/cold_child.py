"""One cold resume in a process of its own: python -m benchmarks.cold_child RUN ROWS OBS_BYTES BATCH

Prints one JSON line. Imports are done, and the engine has claimed the run, before the clock starts.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.process import private_bytes
from benchmarks.replay_run import ReplayShape, make_engine


def main() -> None:
    run_dir, rows, obs_bytes, batch_size = sys.argv[1:5]
    shape = ReplayShape(int(rows), int(obs_bytes))
    with shape.make_ring() as ring, make_engine(Path(run_dir)) as engine:
        engine.track(replay=ring, counters={"step": 0})
        before = private_bytes()
        begin = time.perf_counter()
        report = engine.restore()
        restored = time.perf_counter()
        batch = ring.sample(int(batch_size))
        sampled = time.perf_counter()
        result = {
            "restore_seconds": restored - begin,
            "first_batch_seconds": sampled - begin,
            "private_bytes_before": before,
            "private_bytes_after": private_bytes(),
            "needed_bytes": shape.needed_bytes(batch.indices),
            "touched_bytes": int(batch_size) * shape.row_bytes,
            "rows": len(ring),
            "correct": bool(report) and bool((batch["reward"] == batch["action"]).all()),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
