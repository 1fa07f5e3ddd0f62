"""Write a golden run: a whole run directory that every later pyengine must restore.

    python tools/make_golden_run.py tests/golden/v1/run.tar.xz

Beside the archive lies run_holds.json: digests of what the newest snapshot holds. Both are written
once, by the version whose format they stand for, and never again: existing ones are refused. What
trains is `Training` of tests/integration/program.py with a smaller ring; test_older_runs.py beside
it restores the run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
from pathlib import Path

import pyengine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))
from program import Training, new_ring

ROWS_PER_LANE = 8
SNAPSHOTS = (10, 14)
CHECKED = ("policy", "counters", "rows", "window", "generators")
"""Parts of the digest that no library's version changes."""


def train(run_dir: Path) -> dict[str, object]:
    """Make a run with two snapshots; return what its newest one holds."""
    training = Training(ring=new_ring(rows_per_lane=ROWS_PER_LANE))
    with pyengine.SnapshotEngine(run_dir, algorithm="dqn", notes={"env": "toy"}) as engine:
        training.track(engine)
        engine.restore()
        for step in range(SNAPSHOTS[-1] + 1):
            training.step(step)
            if step in SNAPSHOTS:
                info = engine.snapshot(step, metrics={"return": step / 2}).wait(60)
        digest = training.digest()
    return {
        "snapshot": info.name,
        "run_id": info.run_id,
        "updates": training.counters["updates"],
        "digest": {name: digest[name] for name in CHECKED},
    }


def main() -> int:
    """Write the archive and its record; 2 where one of them exists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    archive: Path = parser.parse_args().archive
    record = archive.with_name("run_holds.json")
    if archive.exists() or record.exists():
        print(f"{archive.parent} holds a golden run already: it is never overwritten")
        return 2
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        told = train(run_dir)
        with tarfile.open(archive, "x:xz") as tar:
            tar.add(run_dir, arcname="run")
    record.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
