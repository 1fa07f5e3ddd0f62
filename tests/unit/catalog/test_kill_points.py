"""Killed at every single call: the old snapshot or the new one, and nothing left over."""

from __future__ import annotations

import itertools
import os

import pytest
from faulty_fork import DONE, KILLED, run_faulty
from small_runs import publish

from pyengine.catalog import lines, scan
from pyengine.catalog.claim import claim_run
from pyengine.catalog.verify import verify_snapshot


def _commit_two(run_dir):
    with claim_run(run_dir) as owned:
        number = owned.generation
        parent = scan.newest_restorable(run_dir)
        line = lines.open_line(run_dir, number, parent=parent, start_rows={"replay": [0, 0]})
        for sequence in (1, 2):
            publish(run_dir, generation=number, sequence=sequence, line=line.id, keep_last=1)


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
    _commit_two(run_dir)
    for nth in itertools.count(1):
        before = scan.newest_restorable(run_dir)
        # Before each call is enough: after one call is before the next that changes anything.
        end = run_faulty(lambda: _commit_two(run_dir), nth, "kill", op)
        assert end in (DONE, KILLED)
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
        if end == DONE:
            break
    assert nth > 1
