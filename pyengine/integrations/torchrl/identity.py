"""Whether a script's buffer and collector are those that a run was made with."""

from __future__ import annotations

import os
from typing import Any

import pyengine
from pyengine.errors import ModelMismatchError, RestoreError
from pyengine.integrations.torchrl.layout import Layout

NOTE = "torchrl"
"""Key of the manifest's notes under which the description lies."""

INDEX = "replay_index"

_WORDS = {
    "buffer": "replay buffer class",
    "storage_size": "storage size",
    "storage_dims": "storage dimensions",
    "mutable": "mutable keys",
    "sampler": "sampler",
    "writer": "writer",
    "environment": "environment",
    "frames_per_batch": "frames per batch of the collector",
}


def check(run_dir: str, found: dict[str, Any]) -> None:
    """Raise ModelMismatchError that names both sides; reads the run, touches nothing."""
    snapshots = saved_snapshots(run_dir)
    if not snapshots:
        return
    expected = snapshots[-1].notes.get(NOTE)
    if not isinstance(expected, dict):
        raise ModelMismatchError(
            f"{run_dir} was not made by a TrainingRun; take another run directory",
            what="run", saved=None, found=found,
        )  # fmt: skip
    for key, text in _WORDS.items():
        if expected.get(key) != found.get(key):
            raise ModelMismatchError(
                f"{run_dir}: the run has {text} {expected.get(key)}, the script {found.get(key)}; "
                "make them as the run was made, or take another run directory",
                what=key, saved=expected.get(key), found=found.get(key),
            )  # fmt: skip


def saved_layout(run_dir: str) -> Layout | None:
    """Return what the elements of the run's buffer consist of; None where it has none yet."""
    for info in reversed(saved_snapshots(run_dir)):
        try:
            state = pyengine.load(info.path, only=[INDEX])[INDEX]
        except (RestoreError, FileNotFoundError):
            continue  # damaged or pruned: the restore says so, and takes an older one as well
        if state["layout"] is not None:
            return Layout.from_record(state["layout"])
    return None


def saved_snapshots(run_dir: str) -> list[pyengine.SnapshotInfo]:
    """Return the run's snapshots, oldest first; empty for a directory without any."""
    if not os.path.isdir(run_dir) or not os.listdir(run_dir):
        return []
    return list(pyengine.open_run(run_dir).snapshots)
