"""pyengine: the ring alone, the ring under an engine, a model under an engine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

import pyengine
from benchmarks.pending import Pending
from benchmarks.replay_run import SETUP_SECONDS, WAIT_SECONDS, make_engine, needed_bytes
from benchmarks.rivals.replay import ReplayContestant
from benchmarks.rows import Columns, Rows

TICKED: dict[str, Any] = {"every_steps": 500, "budget": None}
"""Of an engine that is ticked: blocks are shorter than this and begin with multiples of it, so that
each has one snapshot. Their rows come in at once, which the budget would take for a slow disk."""


class Replay(ReplayContestant):
    durable = True

    def __init__(self, rows: Rows, capacity: int, directory: Path) -> None:
        super().__init__(rows, capacity, directory)
        self.ring: Any = self._make_ring()
        self._engine: pyengine.SnapshotEngine | None = None
        self._model: Any = None
        self._step = 0

    def _make_ring(self) -> Any:
        return pyengine.ReplayBuffer(self._schema(), self.capacity, seed=1)

    def _schema(self) -> pyengine.Schema:
        return pyengine.Schema({name: (shape, kind) for name, shape, kind in self.rows.fields})

    def sample(self, count: int) -> Any:
        return self.ring.sample(count)

    def sample_tensors(self, count: int) -> Any:
        return self.ring.sample(count, device="cpu")

    def arrays(self, batch: Any) -> Columns:
        return {name: batch[name] for name, _, _ in self.rows.fields}

    def facts_of(self, batch: Any) -> dict[str, Any]:
        schema = self._schema()
        return {"needed_bytes": needed_bytes(schema, self.capacity, batch.indices)}

    def one_row(self, row: Columns) -> dict[str, Any]:
        return {name: np.ascontiguousarray(column[0]) for name, column in row.items()}

    def add(self, form: dict[str, Any]) -> None:
        self.ring.add(form)

    def many_rows(self, rows: Columns) -> Columns:
        return rows

    def extend(self, form: Columns) -> None:
        self.ring.extend(form)

    def change(self) -> None:
        self._start_engine()
        from benchmarks.models import change

        change(self._model)

    def save(self, place: Path) -> Pending:
        """Take a snapshot into the run, which is the same for all saves of this contestant."""
        assert self._engine is not None
        self._step += 1
        return _pending(self._engine.snapshot(self._step))

    def get_ready(self, place: Path) -> None:
        self._start_engine()
        time.sleep(SETUP_SECONDS)

    def load(self, place: Path) -> None:
        assert self._engine is not None
        if not self._engine.restore():
            raise RuntimeError("there was no snapshot to restore")

    def _start_engine(self) -> None:
        """Track the ring and a model of 1 MB; a load restores both."""
        if self._engine is not None:
            return
        from benchmarks.models import small_model

        self._model = small_model()
        self._engine = make_engine(self.directory / "run")
        self._engine.track(replay=self.ring, model=self._model)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self.ring.close()


class Trained(Replay):
    """The ring and a learner under an engine that is ticked at the end of every step."""

    model: Any

    def plain_twin(self) -> Replay:
        return Replay(self.rows, self.capacity, self.directory)

    def end_step(self, number: int, interval: int, place: Path) -> Pending | None:
        if self._engine is None:
            self._engine = make_engine(self.directory / "run", **TICKED)
            self._engine.track(replay=self.ring, **self.model.parts)
        started = self._engine.tick(number)
        return None if started is None else _pending(started)


class Prioritized(Replay):
    _warmed = False

    def _make_ring(self) -> Any:
        return pyengine.PrioritizedReplayBuffer(
            self._schema(), self.capacity, num_envs=1, seed=1, alpha=0.6, beta=0.4
        )

    def warm(self, count: int) -> None:
        """Give every row a priority of its own, once."""
        rng = np.random.default_rng(3)
        self._priorities = rng.random(count).astype(np.float32)
        if not self._warmed:
            self._warmed = True
            refs = self.ring.refs()
            self.ring.update_priorities(refs, rng.random(len(refs)).astype(np.float32))

    def sample_and_update(self, count: int) -> None:
        batch = self.ring.sample(count)
        self.ring.update_priorities(batch.indices, self._priorities)


class Saver:
    """A model and its optimizer under an engine that saves when asked."""

    durable = True

    def __init__(self, layers: int, directory: Path) -> None:
        from benchmarks.models import change, large_model, state_tensors

        self.model, self.optimizer = large_model(layers)
        self._change = change
        tensors = state_tensors(self.model, self.optimizer).values()
        self.state_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self._engine = make_engine(directory / "run", **TICKED)
        self._engine.track(model=self.model, optimizer=self.optimizer)
        self._step = 0

    def change(self) -> None:
        self._change(self.model)

    def save(self, place: Path) -> Pending:
        self._step += 1
        return _pending(self._engine.snapshot(self._step))

    def end_step(self, number: int, interval: int, place: Path) -> Pending | None:
        started = self._engine.tick(number)
        return None if started is None else _pending(started)

    def close(self) -> None:
        self._engine.close()


def _pending(snapshot: pyengine.PendingSnapshot) -> Pending:
    return Pending(lambda: snapshot.wait(WAIT_SECONDS), lambda: snapshot.is_done)
