"""SIGKILL of trainer, writer or both at every point that matters.

Whatever is killed, the next start restores the old or the new snapshot, bit-identical, goes on to
the same end as a run that nobody killed, and leaves no temporary behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import await_writers_end, committed, leftovers, shm_names
from program import Plan, Training, run

FIRST, SECOND, STEPS = 12, 24, 40
WRITER = "*pyengine.writer*"

# Where in the second snapshot's way to disk it happens. Segments go to disk as they seal, before
# the snapshot is staged, and carry no sequence: those before the first snapshot are passed over by
# count, one of eight rows for each of four lanes.
SEGMENTS_BEFORE = 4
POINTS: dict[str, dict[str, Any]] = {
    "staged": {"op": "mkdir", "path": "*s0002-1", "nth": 1},
    "inside a segment": {"op": "pwrite", "path": "*/segments/*/.tmp-*", "nth": SEGMENTS_BEFORE + 3},
    "before an fsync of a segment": {
        "op": "fsync", "path": "*/segments/*/.tmp-*", "nth": SEGMENTS_BEFORE + 3,
    },
    "after a segment's rename": {
        "op": "rename", "path": "*/segments/*", "nth": SEGMENTS_BEFORE + 3, "when": "after",
    },
    "inside the part": {"op": "pwrite", "path": "*s0002-1/buffer/*part*", "nth": 1},
    "before an fsync of a file": {"op": "fsync", "path": "*s0002-1/model/*", "nth": 1},
    "before the directory's rename": {"op": "rename", "path": "*s0002-1", "nth": 1},
    "before the manifest's rename": {"op": "rename", "path": "*s0002/manifest.json", "nth": 1},
    "after the manifest's rename": {
        "op": "rename", "path": "*s0002/manifest.json", "nth": 1, "when": "after",
    },
    "while pruning": {"op": "rename", "path": "*/.trash-*s0001*", "nth": 1, "when": "after"},
}  # fmt: skip


def fault(point: str, victim: str) -> dict[str, Any]:
    """Return the rule that kills `victim` at `point`, carried out by the writer."""
    rule = {"process": WRITER, **POINTS[point]}
    if victim in ("trainer", "both"):
        rule["signal_pid"] = "parent"
    rule["action"] = "delay" if victim == "trainer" else "kill"
    return rule


@pytest.fixture(scope="module")
def reference() -> dict[int, dict[str, str]]:
    training = Training()
    digests = {}
    for step in range(STEPS):
        training.step(step)
        digests[step] = training.digest()
    return digests


@pytest.mark.parametrize("victim", ["trainer", "writer", "both"])
@pytest.mark.parametrize("point", list(POINTS))
def test_a_kill_leaves_the_old_or_the_new_snapshot(
    start: Any,
    token: str,
    tmp_path: Path,
    reference: dict[int, dict[str, str]],
    point: str,
    victim: str,
) -> None:
    run_dir = str(tmp_path / "run")
    plan = Plan(
        STEPS,
        snapshots=(FIRST, SECOND),
        wait_for=(FIRST, SECOND),
        faults=(fault(point, victim),),
        options={"keep_last": 1},
    )
    child = start(run, run_dir, plan)
    messages = child.messages()
    if victim == "writer":
        # The trainer lives, its writer is replaced, nothing is lost.
        assert child.join() == 0
        assert messages[-1] == ("end", reference[STEPS - 1])
        assert committed(run_dir)[-1].startswith(f"step-{SECOND:08d}")
    else:
        assert child.join() == -9
    await_writers_end(token)

    resumed = start(run, run_dir, Plan(STEPS, snapshots=(STEPS - 1,), options={"keep_last": 1}))
    _, step, digest = resumed.receive("restored")
    assert step in (FIRST, SECOND)
    is_staged = victim == "writer" or "segment" not in point
    is_committed = point in ("after the manifest's rename", "while pruning")
    if is_committed or (is_staged and victim != "both"):
        assert step == SECOND, "the writer outlives its trainer and commits what was staged"
    assert digest == reference[step]
    assert resumed.receive("end")[1] == reference[STEPS - 1]
    assert resumed.join() == 0
    assert leftovers(run_dir) == []
    await_writers_end(token)
    assert shm_names() == set()
