"""RowsCheckpointAdapter: a buffer in torchrl.checkpoint, without writing its rows once more.

    checkpoint = Checkpoint(policy=policy, replay_buffer=rb)
    checkpoint.register_adapter(ReplayBuffer, RowsCheckpointAdapter(run))
    checkpoint.save("checkpoints/10000")

TorchRL writes a buffer whole into each checkpoint. Here a snapshot of the run is taken, of which
only new rows are written, and its files are linked into the checkpoint: whole by itself, and
durable on return.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchrl.checkpoint import CheckpointAdapter

import pyengine
from pyengine.catalog.branch import branch_run
from pyengine.errors import ConfigError, StateMismatchError
from pyengine.integrations.torchrl import identity
from pyengine.integrations.torchrl.buffers import BufferState
from pyengine.integrations.torchrl.layout import Layout
from pyengine.integrations.torchrl.rows import READ_ROWS, StorageRows
from pyengine.integrations.torchrl.run import RING, TrainingRun

_ROWS = "run"


class RowsCheckpointAdapter(CheckpointAdapter):
    """Saves the replay buffer of a TrainingRun as links to a snapshot, and loads it anywhere.

    `save` takes a snapshot, of the collector's frames or `save_kwargs={"step": ...}`, and waits
    until it is durable. `load` appends the rows to the buffer, whose elements are given up, and
    needs no run; it copies them, so that the checkpoint may be deleted.
    """

    adapter_id = "pyengine.rows"
    format_version = 1

    def __init__(self, run: TrainingRun | None = None) -> None:
        self._run = run

    def save(
        self, component: Any, path: Path, *, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Link a snapshot's files into `path`; ConfigError without the run of that buffer."""
        if self._run is None or not self._run.saves(component):
            raise ConfigError(
                "RowsCheckpointAdapter saves the buffer of its TrainingRun: "
                "RowsCheckpointAdapter(run)"
            )
        path.mkdir(parents=True, exist_ok=True)
        info = self._run.snapshot(*args, **kwargs).wait()
        branch_run(info.path, os.fspath(path / _ROWS))
        return info

    def load(
        self,
        component: Any,
        path: Path,
        *,
        map_location: Any,
        tensor_load_kwargs: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Let the buffer hold what was saved, at the same indices; StateMismatchError."""
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".rows-") as scratch:
            # Reading a run claims it: the checkpoint's own files stay as they are.
            branch = os.path.join(scratch, _ROWS)
            branch_run(f"{path / _ROWS}@latest", branch)
            _load(component, branch)


def _load(buffer: Any, run_dir: str) -> None:
    saved = pyengine.load(run_dir, only=[identity.INDEX, "replay_buffer"])
    index, storage = saved[identity.INDEX], buffer.storage
    storage._empty()
    state = BufferState(buffer)
    state.check_state(saved["replay_buffer"])
    if index["layout"] is not None:
        layout = Layout.from_record(index["layout"])
        if not storage.initialized:
            storage.make_rows(layout)
        if storage.rows.layout != layout:
            raise StateMismatchError(
                "the elements of the buffer are others than the checkpoint's",
                component="replay_buffer",
                expected=list(storage.rows.layout.leaves),
                got=list(layout.leaves),
            )
        _copy(run_dir, index, layout, storage)
        storage._set_last_cursor(index["cursor"])
    state.set_state(saved["replay_buffer"])


def _copy(run_dir: str, index: dict[str, Any], layout: Layout, storage: Any) -> None:
    live = storage.rows
    mutable = None if live.is_mutable else live.mutable
    # Fields in the saved order, which need not be that of the live ones.
    rows = StorageRows(layout, live.steps, mutable, None)
    names = [one.name for one in pyengine.open_run(run_dir).snapshots[-1].components]
    with rows.ring, pyengine.SnapshotEngine(run_dir, track_rng=False) as engine:
        engine.track(**{RING: rows.ring})
        engine.restore(allow=names)
        rows.set_state(index["rows"])
        length, head = rows.length, rows.position
        turn = head if length == rows.steps else 0
        if not live.is_mutable:
            live.begin_at(turn)
        # Oldest first, a block at a time.
        for start in range(0, length, READ_ROWS):
            count = min(READ_ROWS, length - start)
            steps = (turn + start + np.arange(count)) % rows.steps
            refs = rows.refs(np.repeat(steps, rows.lanes), np.tile(np.arange(rows.lanes), count))
            values = rows.gather(refs, None)
            elements = live.layout.join(values, (count, *live.layout.lane_shape), None)
            storage.set(torch.from_numpy(steps), elements)
