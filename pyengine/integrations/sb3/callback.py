"""SnapshotCallback: the one line that makes a Stable-Baselines3 run resumable, bit for bit.

A rollout begins with a state that is whole: the last transition is stored, the last gradient step
done. So that is when a snapshot is taken, and where a resumed run goes on:

    learn() -> _setup_learn (resets) -> on_training_start: state goes back
            -> collect_rollouts -> on_rollout_start: generators go back / a snapshot if one is due

Between the two the library draws from generators (state-dependent exploration), which is why they
are put back once more.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

import pyengine
from pyengine.errors import ConfigError, ModelStateError
from pyengine.events import logger
from pyengine.integrations.sb3 import identity, logs
from pyengine.integrations.sb3.run import ModelRun
from pyengine.integrations.settings import check_settings

_serving: weakref.WeakValueDictionary[str, SnapshotCallback] = weakref.WeakValueDictionary()
"""The callback that served last, by run directory."""


class SnapshotCallback(BaseCallback):
    """Start a run, or resume it where it stopped; the script stays the same.

        model = DQN("CnnPolicy", env, buffer_size=100_000)
        model.learn(TOTAL, callback=SnapshotCallback("runs/pong", every_steps=2_000))

    TOTAL is absolute: a run killed at step 7,000 of 10,000 makes 3,000 more. Snapshots are taken at
    the first rollout after `every_steps` steps of all environments (as `num_timesteps` counts), or
    `every_seconds`, whichever comes first, and at the end.

    `run_dir` is the run directory, below it a directory `name_prefix` if given. The newest
    `keep_last` snapshots stay, and with `keep_best="rollout/ep_rew_mean"` or "eval/mean_reward" the
    one with the highest value too. `fresh=True` begins anew beside what is there, `eager=True`
    verifies the whole replay before training goes on. `notes` (plain JSON values) go into every
    manifest, other settings to `pyengine.SnapshotEngine`. `verbose=1` prints what is
    not saved.

    Raises, before anything in the run is touched, ModelMismatchError where the script's algorithm,
    spaces, environments or buffer are not those of the run; TruncatedLogError; ModelStateError
    where the model has trained already, is neither off-policy nor on-policy (ARS), or the callback
    served before (several `learn()` calls: see `learn`). Then what `SnapshotEngine` and its
    `restore` and `tick` raise.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        name_prefix: str = "",
        keep_last: int = 3,
        keep_best: str | None = None,
        eager: bool = False,
        fresh: bool = False,
        notes: Mapping[str, Any] | None = None,
        verbose: int = 1,
        **engine_settings: Any,
    ) -> None:
        super().__init__(verbose)
        if os.sep in name_prefix or name_prefix in (".", ".."):
            raise ConfigError(f"name_prefix={name_prefix!r} must be a plain name")
        path = os.fspath(run_dir)
        self.run_dir = os.path.join(path, name_prefix) if name_prefix else path
        self.report: pyengine.RestoreReport | None = None
        """What the restore found, once training has started."""
        self._settings: dict[str, Any] = {
            "every_steps": every_steps, "every_seconds": every_seconds, "keep_last": keep_last,
            "keep_best": keep_best, "fresh": fresh, **engine_settings,
        }  # fmt: skip
        self._notes = notes or {}
        check_settings(
            "SnapshotCallback",
            self.run_dir,
            {"notes": self._notes, **self._settings},
            library="Stable-Baselines3",
            whose="the model's",
        )
        self._eager = eager
        self._fresh = fresh
        self._engine: pyengine.SnapshotEngine | None = None
        self._run: ModelRun | None = None
        self._has_served = False
        self._in_phases = False
        self._is_in_learn = False
        self._learning: FrameType | None = None
        self._last: pyengine.PendingSnapshot | None = None
        self._unwritten: list[pyengine.PendingSnapshot] = []

    def _on_training_start(self) -> None:
        if self._run is not None:
            self._check_phase(self._run)
            return
        if self._has_served:
            raise ModelStateError(
                "this callback has served a learn() already. For several learn() calls use its "
                "own: with SnapshotCallback(...) as run: run.learn(model, 10_000); "
                "run.learn(model, 20_000)"
            )
        _check_kind(self.model)
        _check_untrained(self.model)
        found = identity.describe(self.model)
        if not self._fresh:
            identity.DESCRIPTION.check(self.run_dir, found)
            logs.check_log_sizes(identity.saved_logs(self.run_dir))
        self._has_served = True
        self._end_abandoned()
        self._engine = engine = pyengine.SnapshotEngine(
            self.run_dir,
            algorithm=found["algorithm"],
            notes={**self._notes, identity.DESCRIPTION.note: found},
            **self._settings,
        )
        self._learning = _frame_of_learn(self.model)
        _serving[os.path.realpath(self.run_dir)] = self
        try:
            run = self._run = ModelRun(engine, self.model, self.locals, self, self._say)
            self.report = run.restore(eager=self._eager)
        except BaseException:
            self._close()
            raise
        self.num_timesteps = self.model.num_timesteps
        if self.report.snapshot is not None:
            self._say(f"{self.run_dir}: training goes on after {self.num_timesteps:,} steps")

    def _check_phase(self, run: ModelRun) -> None:
        """Refuse a further learn() that the run would take for another than it is."""
        if not run.is_of(self.model):
            raise ModelStateError(
                "this run saves another model: make a SnapshotCallback, with a run directory of "
                "its own, for each model"
            )
        if not self._is_in_learn:
            raise ModelStateError(
                "call the run's own learn() for this phase too: run.learn(model, total)"
            )

    def _on_rollout_start(self) -> None:
        if self._run is None or self._engine is None:
            return
        self._run.is_torn = False
        if not self._run.rollout_starts():
            pending = self._engine.tick(self.model.num_timesteps, metrics=self._run.metrics)
            if pending is not None:
                self._log(self._engine, pending)

    def _on_step(self) -> bool:
        if self._run is not None:
            self._run.is_torn = True  # the transition of this step is not stored yet
        return True

    def _on_rollout_end(self) -> None:
        if self._run is not None:
            self._run.is_torn = False
            self._run.rollout_ended()

    def _on_training_end(self) -> None:
        if self._run is None or self._engine is None:
            return
        try:
            if self._in_phases:
                self._run.learn_ended()
            step = self.model.num_timesteps
            if self._newest_step() != step or self._run.is_torn:
                self._last = self._engine.snapshot(step, metrics=self._run.metrics())
        finally:
            if not self._in_phases:
                self._close()

    def learn(self, model: BaseAlgorithm, total_timesteps: int, **settings: Any) -> BaseAlgorithm:
        """Train until `total_timesteps`, counted from the run's beginning; at once if it is past.

        For scripts that call `learn` several times, inside `with SnapshotCallback(...) as run:`.
        `settings` go to `model.learn`; a `callback=` among them runs beside this one.
        """
        if not self._in_phases:
            raise ModelStateError("use learn() inside `with SnapshotCallback(...) as run:`")
        others = settings.pop("callback", None)
        callbacks = others if isinstance(others, list) else [others] if others is not None else []
        is_first = self._run is None
        self._is_in_learn = True
        try:
            model.learn(
                max(0, total_timesteps - (0 if is_first else model.num_timesteps)),
                callback=[self, *callbacks],
                reset_num_timesteps=is_first,
                **settings,
            )
        finally:
            self._is_in_learn = False
        return model

    def __enter__(self) -> SnapshotCallback:
        self._in_phases = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def _newest_step(self) -> int | None:
        """Return the step of the newest snapshot, of this process or of the one before."""
        if self._last is not None:
            return self._last.step
        return self.report.global_step if self.report is not None else None

    def _log(self, engine: pyengine.SnapshotEngine, pending: pyengine.PendingSnapshot) -> None:
        """Record costs with the library's own logger: of this capture, of the newest write."""
        self.logger.record("snapshot/stall_seconds", pending.stall_seconds)
        self.logger.record("snapshot/skipped", engine.skipped)
        for one in self._unwritten:
            if one.outcome is not None:
                self.logger.record("snapshot/persist_seconds", one.outcome.persist_ns / 1e9)
                self.logger.record("snapshot/bytes_written", one.outcome.bytes_written)
        self._unwritten = [one for one in self._unwritten if not one.is_done]
        self._unwritten.append(pending)
        self._last = pending

    def _close(self) -> None:
        run, self._run = self._run, None
        engine, self._engine = self._engine, None
        self._learning = None
        if run is not None:
            run.release()
        if engine is not None:
            engine.close()

    def _end_abandoned(self) -> None:
        """Close the engine of a learn() in this process that an exception has ended.

        The library tells a callback of no such end: a notebook's cell could not be run again.
        """
        former = _serving.get(os.path.realpath(self.run_dir))
        if former is not None and former is not self and not former._is_learning():
            former._close()

    def _is_learning(self) -> bool:
        """Whether the learn() that this callback serves is under way, in whatever thread."""
        for frame in sys._current_frames().values():
            step: FrameType | None = frame
            while step is not None:
                if step is self._learning:
                    return True
                step = step.f_back
        return False

    def _say(self, text: str) -> None:
        if self.verbose:
            print(text)
        else:
            logger.info("%s", text)


def _frame_of_learn(model: BaseAlgorithm) -> FrameType | None:
    """Return the outermost frame of the model's learn(), further up this thread's stack."""
    found, frame = None, sys._getframe()
    while (outer := frame.f_back) is not None:
        frame = outer
        if frame.f_code.co_name == "learn" and frame.f_locals.get("self") is model:
            found = frame
    return found


def _check_kind(model: BaseAlgorithm) -> None:
    if not isinstance(model, (OffPolicyAlgorithm, OnPolicyAlgorithm)):
        raise ModelStateError(
            f"{type(model).__name__} is no OffPolicyAlgorithm and no OnPolicyAlgorithm: where its "
            "state is whole is not known (ARS holds perturbed weights while it collects). Save it "
            "with pyengine.SnapshotEngine in a loop of your own"
        )


def _check_untrained(model: BaseAlgorithm) -> None:
    buffer = getattr(model, "replay_buffer", None)
    rows = buffer.size() if buffer is not None else 0
    updates = getattr(model, "_n_updates", 0)
    if model.num_timesteps or updates or rows:
        raise ModelStateError(
            f"the model has trained already ({model.num_timesteps} steps, {updates} updates, "
            f"{rows} rows): attach the callback to the first learn(), with reset_num_timesteps "
            "left at True"
        )
