"""Killed at every single call: the old snapshot or the new one, and nothing left over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from pyengine.catalog import scan
from pyengine.catalog.claim import claim_run
from pyengine.catalog.verify import verify_snapshot

_COMMIT = """
import sys
sys.path.insert(0, sys.argv[2])
import small_runs
from pyengine.catalog import claim, lines, markers
with claim.claim_run(sys.argv[1]) as owned:
    number = owned.generation
    parent = claim.scan.newest_restorable(sys.argv[1])
    line = lines.open_line(sys.argv[1], number, parent=parent, start_rows={"replay": [0, 0]})
    for sequence in (1, 2):
        small_runs.publish(
            sys.argv[1], generation=number, sequence=sequence, line=line.id, keep_last=1
        )
"""


def _start(run_dir, *rules):
    plan = dict(os.environ, PYENGINE_FAULT_PLAN=json.dumps(rules))
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    done = subprocess.run(
        [sys.executable, "-c", _COMMIT, run_dir, here], env=plan, capture_output=True, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode == 0


def _leftovers(run_dir):
    return [
        os.path.join(base, name)
        for base, directories, files in os.walk(run_dir)
        for name in directories + files
        if name.startswith(".") or name.endswith(".tmp")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("op", ["rename", "fsync", "unlink", "mkdir", "rmdir", "symlink", "pwrite"])
def test_kill_before_every_call_leaves_old_or_new(tmp_path, op):
    run_dir = str(tmp_path / "run")
    assert _start(run_dir)
    nth = 0
    is_finished = False
    while not is_finished:
        nth += 1
        before = scan.newest_restorable(run_dir)
        # Before each call is enough: after one call is before the next that changes anything.
        is_finished = _start(run_dir, {"op": op, "nth": nth, "action": "kill"})
        newest = scan.newest_restorable(run_dir)
        assert newest.order >= before.order
        found = scan.scan_snapshots(run_dir)
        assert found.problems == ()
        for info in found.snapshots:
            assert verify_snapshot(info.path) == []
        with claim_run(run_dir, wait_seconds=0):
            assert _leftovers(run_dir) == []
            assert os.listdir(os.path.join(run_dir, "quarantine")) == [], "no kill is damage"
            assert scan.newest_restorable(run_dir).name == newest.name
    assert nth > 1
