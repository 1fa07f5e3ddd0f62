"""A forked child may let go of its parent's rings: by its end, or because nobody holds them."""

from __future__ import annotations

import subprocess
import sys

import pytest

MAKING = {
    "plain": "ring = pyengine.ReplayBuffer({'id': 'int64'}, 64, num_envs=2); "
    "rows = np.zeros((9, 2))",
    "priorities": "ring = pyengine.PrioritizedReplayBuffer({'id': 'int64'}, 64, num_envs=2); "
    "rows = np.zeros((9, 2))",
    "mutable": "ring = pyengine.ReplayBuffer({'id': pyengine.Field((), 'int64', mutable=True), "
    "'x': 'int64'}, 64); rows = np.zeros(9)",
}
SCRIPT = """
import gc, os, sys
import numpy as np
import pyengine
{make}
give = lambda: ring.extend(dict.fromkeys(ring.schema, rows.astype('int64')))
give()
child = os.fork()
if child == 0:
    if {early}:
        del give, ring
        gc.collect()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
give()
assert len(ring.sample(4)['id'].reshape(4, -1)) == 4
"""


@pytest.mark.parametrize("early", [True, False], ids=["dropped", "at the end"])
@pytest.mark.parametrize("kind", MAKING)
def test_a_forked_child_that_lets_go_of_a_ring_ends_as_it_says(kind, early):
    script = SCRIPT.format(make=MAKING[kind], early=early)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_forked_child_that_lets_go_of_an_engine_ends_as_it_says(tmp_path):
    make = (
        f"engine = pyengine.SnapshotEngine({str(tmp_path / 'run')!r}); {MAKING['plain']}; "
        "engine.track(ring=ring); engine.restore()"
    )
    script = SCRIPT.format(make=make, early=False) + "engine.close(final=1)\n"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
