"""Whether a script's buffer and collector are those that a run was made with."""

from __future__ import annotations

import pyengine
from pyengine.errors import RestoreError
from pyengine.integrations.description import Description, saved_snapshots
from pyengine.integrations.torchrl.layout import Layout

INDEX = "replay_index"

DESCRIPTION = Description(
    note="torchrl",
    words={
        "buffer": "replay buffer class",
        "storage_size": "storage size",
        "storage_dims": "storage dimensions",
        "mutable": "mutable keys",
        "sampler": "sampler",
        "writer": "writer",
        "environment": "environment",
        "frames_per_batch": "frames per batch of the collector",
    },
    whose="the script",
    what="them",
    maker="a TrainingRun",
)


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
