"""One measurement from its first file to the last one's removal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyengine.cli.measure.figures import Figures
from pyengine.cli.measure.hardware import drop_page_cache, measure_disk, resident
from pyengine.cli.measure.learner import BATCH, Learner, Noise, played_rows
from pyengine.cli.measure.scratch import scratch_directory
from pyengine.cli.measure.windows import Training
from pyengine.cli.measure.workload import Workload
from pyengine.engine.engine import SnapshotEngine
from pyengine.errors import PyengineError
from pyengine.replay.ring import ReplayBuffer

Progress = Callable[[int, int], None]
"""Called with (parts done, parts in all)."""

_RESTORES = 3
_SPARE_BYTES = 64_000_000


def measure(workload: Workload, directory: str, progress: Progress | None = None) -> Figures:
    """Measure what snapshots of `workload` cost in a directory of their own below `directory`.

    Takes about a minute. That directory is gone and all shared memory free on return, and after an
    exception, also one that a signal handler raises. Raises ConfigError, SharedMemoryError and
    NoSpaceError before anything starts, SnapshotError and OSError later.
    """
    spare_rows = max(2, min(workload.capacity, _SPARE_BYTES // workload.schema.row_bytes))
    spare = ReplayBuffer(workload.schema, spare_rows)
    ring = ReplayBuffer(workload.schema, workload.capacity)
    workload.check_space(directory, ring.whole_bytes + spare.whole_bytes)
    tell = progress or (lambda done, total: None)
    with scratch_directory(directory) as place, spare, ring:
        tell(0, 1)
        disk = measure_disk(place)
        learner = Learner(workload.schema, workload.state_bytes)
        noise = Noise(workload.schema).rows()
        rows = noise if workload.env is None else played_rows(workload.env)
        run_dir = os.path.join(place, "run")
        with _engine(run_dir) as engine:
            engine.track(model=learner.model, optimizer=learner.optimizer, replay=ring)
            engine.restore()
            training = Training(workload, engine, ring, spare, learner, rows)
            training.prepare()
            trainer = resident(os.getpid())
            assert engine.writer_pid is not None
            writer = resident(engine.writer_pid)
            steps, rounds = training.plan()
            parts = rounds + _RESTORES
            windows = training.measure(steps, rounds, lambda done: tell(done, parts))
        ring.close()
        restores = []
        for number in range(_RESTORES):
            restores.append(_restore(run_dir, workload, learner))
            tell(rounds + number + 1, parts)
        return Figures.of(
            workload,
            windows,
            ring_bytes=ring.whole_bytes,
            state_bytes=learner.state_bytes,
            trainer=trainer,
            writer=writer,
            restores=restores,
            disk=disk,
        )


def _restore(run_dir: str, workload: Workload, learner: Learner) -> tuple[float, float]:
    """Restore the newest snapshot, files not in the page cache; return its seconds, and those until
    a first batch is sampled."""
    with ReplayBuffer(workload.schema, workload.capacity) as ring, _engine(run_dir) as engine:
        engine.track(model=learner.model, optimizer=learner.optimizer, replay=ring)
        drop_page_cache(run_dir)
        begin = time.perf_counter()
        engine.restore()
        restored = time.perf_counter()
        ring.sample(BATCH, device="cpu")
        return restored - begin, time.perf_counter() - begin


@contextmanager
def _engine(run_dir: str) -> Iterator[SnapshotEngine]:
    """An engine that takes snapshots when asked. After an exception nobody waits for its writer,
    whose files are about to go."""
    engine = SnapshotEngine(run_dir, keep_last=1, budget=None)
    try:
        yield engine
    except BaseException:
        with suppress(PyengineError):
            engine.close(timeout=0)
        raise
    engine.close()
