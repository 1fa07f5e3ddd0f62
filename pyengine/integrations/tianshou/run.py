"""SnapshotRun: the call that makes a Tianshou training resumable, bit for bit.

A training step begins with `training_fn`: then the last transition is stored, the last gradient
step done, and no environment is within a step. That is when a snapshot is taken. A run that resumes
goes on with the training step that had begun then, in the epoch in which it had:

    run_training() -> trainer.reset() (resets) -> state goes back -> epochs
                   -> training_fn: a snapshot if one is due, then the script's own training_fn

Offline trainings, which have no training_fn, are saved between epochs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from tianshou.data import AsyncCollector
from tianshou.trainer import OnlineTrainerParams

import pyengine
from pyengine.errors import ConfigError
from pyengine.events import logger
from pyengine.integrations.description import newest
from pyengine.integrations.settings import check_settings
from pyengine.integrations.tianshou import identity
from pyengine.integrations.tianshou.training import Training
from pyengine.integrations.tianshou.walk import Attributes

LEVEL = "exact at the beginning of a training step"


class SnapshotRun:
    """Start a training, or resume it where it stopped; the script stays the same.

        run = SnapshotRun("runs/cartpole", every_steps=10_000)
        stats = run.run_training(algorithm, params)      # for algorithm.run_training(params)

    `max_epochs` is absolute: a run killed in the third of ten epochs goes on in the third, and one
    that had all ten returns at once. Snapshots are taken at the first training step after
    `every_steps` environment steps, or `every_seconds`, whichever comes first, and at the end. What
    continues, with environments that can be saved, is the run that was, bit for bit.

    `run_dir` is the run directory. The newest `keep_last` snapshots stay, and with
    `keep_best="test/reward"` the one with the highest value too ("test/best_reward" is the best so
    far). `fresh=True` begins anew beside what is there, `eager=True` verifies the whole replay
    before training goes on. `notes` (plain JSON values) go into every manifest, other settings to
    `pyengine.SnapshotEngine`. `verbose=1` prints what is not saved.

    Raises ConfigError for settings that cannot work.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep_last: int = 3,
        keep_best: str | None = None,
        eager: bool = False,
        fresh: bool = False,
        notes: Mapping[str, Any] | None = None,
        verbose: int = 1,
        **engine_settings: Any,
    ) -> None:
        self.run_dir = os.fspath(run_dir)
        self.report: pyengine.RestoreReport | None = None
        """What the restore found, once training has started."""
        self.verbose = verbose
        self._settings: dict[str, Any] = {
            "every_steps": every_steps, "every_seconds": every_seconds, "keep_last": keep_last,
            "keep_best": keep_best, "fresh": fresh, **engine_settings,
        }  # fmt: skip
        self._notes = notes or {}
        self._eager = eager
        self._fresh = fresh
        check_settings(
            "SnapshotRun",
            self.run_dir,
            {"notes": self._notes, **self._settings},
            library="Tianshou",
            whose="the training's",
        )

    def run_training(self, algorithm: Any, params: Any) -> Any:
        """Train as `algorithm.run_training(params)` does; return its InfoStats.

        The buffer stays in the ring afterwards, readable until the process ends. Raises, before
        anything in the run is touched, ModelMismatchError where algorithm, spaces, environments or
        buffer are not those of the run, and ConfigError for an AsyncCollector, or where
        `resume_from_log` is set; later ConfigError where a part of the algorithm, or the buffer, is
        replaced by another object. Then what `SnapshotEngine` and its `restore` and `tick` raise.
        """
        _check_params(params)
        attributes = Attributes(algorithm)
        found = identity.describe(algorithm, params)
        if not self._fresh:
            identity.DESCRIPTION.check(self.run_dir, found)
        trainer = algorithm.create_trainer(params)
        with pyengine.SnapshotEngine(
            self.run_dir,
            algorithm=found["algorithm"],
            notes={**self._notes, identity.DESCRIPTION.note: {**found, "level": LEVEL}},
            **self._settings,
        ) as engine:
            # Now: the writer of a dead trainer may have committed the first one a moment ago.
            is_resumed = not self._fresh and newest(self.run_dir) is not None
            _reset(trainer, is_resumed=is_resumed)
            training = Training(engine, trainer, attributes, self._say, is_resumed=is_resumed)
            self.report = training.restore(eager=self._eager)
            if self.report:
                steps = self.report.global_step
                self._say(f"{self.run_dir}: training goes on after {steps:,} environment steps")
            own = getattr(params, "training_fn", None)
            with _Hook(params, training.training_fn(own)):
                training.run()
            training.finish()
        return trainer._create_info_stats()

    def _say(self, text: str) -> None:
        if self.verbose:
            print(text)
        else:
            logger.info("%s", text)


class _Hook:
    """Puts a training_fn into a training's parameters while it runs."""

    def __init__(self, params: Any, hook: Callable[[int, int], None]) -> None:
        self._params = params
        self._hook = hook

    def __enter__(self) -> None:
        self._is_online = isinstance(self._params, OnlineTrainerParams)
        if self._is_online:
            self._former = self._params.training_fn
            self._params.training_fn = self._hook

    def __exit__(self, *exception: object) -> None:
        if self._is_online:
            self._params.training_fn = self._former


def _check_params(params: Any) -> None:
    collectors = (getattr(params, "training_collector", None), params.test_collector)
    if any(isinstance(collector, AsyncCollector) for collector in collectors):
        raise ConfigError(
            "an AsyncCollector has environments within a step at any time, whose state cannot be "
            "saved: use Collector"
        )
    if params.resume_from_log:
        raise ConfigError(
            "resume_from_log=True takes counters from a log, the run has them in its snapshots: "
            "leave it out"
        )


def _reset(trainer: Any, *, is_resumed: bool) -> None:
    """Begin as the library does; a run that goes on makes no first test, and saves no best model.

    What that test would find is in the snapshot.
    """
    params = trainer.params
    collector = params.test_collector
    if not is_resumed or collector is None:
        trainer.reset()
        return
    params.test_collector = None
    try:
        trainer.reset()
    finally:
        params.test_collector = collector
    collector.reset()
