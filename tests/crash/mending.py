"""A second scenario: what is done to a run that was damaged, and with a run that goes on elsewhere.

    life    as the first one of crash.lives: two snapshots stay
    damage  a byte of the newest one is flipped, on the disk
    mend    restored: that snapshot goes into quarantine, the one before comes back; two more
    branch  a new run is made of the newest snapshot
    gc      what lies in quarantine is removed

Besides what holds for every restore: until it is removed, a damaged snapshot is under one name at
least, and a branch is whole once its call has returned.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from crash.lives import LIVES, Faults, Log, arm, go_on_once, in_child, live
from pyengine.catalog import branch, garbage, quarantine, scan
from pyengine.fs import door

BRANCH = "branch"


def play(root: str, log: Log, seed: int, plan: Faults) -> None:
    """Play all of it below `root`, each act in a process of its own that follows the plan."""
    run_dir = f"{root}/run"
    _in_child(log, partial(live, run_dir, log, seed, LIVES[0], plan))
    for act in (
        partial(_damage, run_dir, log),
        partial(go_on_once, run_dir, log, seed, snapshots=2),
        partial(_branch, run_dir, f"{root}/{BRANCH}", log),
        partial(_collect, run_dir, log),
    ):
        _in_child(log, partial(_armed, plan, act))


def _in_child(log: Log, act: Callable[[], None]) -> None:
    code = in_child(act)
    assert code == 0, log.read()


def _armed(plan: Faults, act: Callable[[], None]) -> None:
    arm(plan)
    act()


def _damage(run_dir: str, log: Log) -> None:
    *_, before, newest = scan.committed_names(run_dir)
    info = scan.read_snapshot(run_dir, newest.text)
    # The largest file that no other snapshot shares.
    path = max(
        (os.path.join(info.path, file.path) for file in info.files if file.covers == "all"),
        key=os.path.getsize,
    )
    # From now on it may be found damaged: that much may be lost.
    log.note(event="damaged", name=newest.text, before=before.text)
    with open(path, "rb") as file:
        data = file.read()
    fd = door.active.open(path, os.O_WRONLY)
    door.active.pwrite(fd, bytes([data[-1] ^ 1]), len(data) - 1)
    door.active.fsync(fd)
    door.active.close(fd)


def _branch(run_dir: str, new: str, log: Log) -> None:
    branch.branch_run(f"{run_dir}@latest", new)
    log.note(event="branched")


def _collect(run_dir: str, log: Log) -> None:
    assert quarantine.snapshot_names(run_dir), "nothing was damaged"
    log.note(event="collecting")
    garbage.collect_garbage(run_dir, delete=True, with_quarantine=True)
    assert not quarantine.snapshot_names(run_dir)
