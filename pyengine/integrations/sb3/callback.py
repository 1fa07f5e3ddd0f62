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
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np
from pyengine.integrations.sb3.buffers import Adoption, adopt
from pyengine.integrations.sb3.environments import VecEnvState, reset_after_restore
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.utils import safe_mean

import pyengine
from pyengine.errors import ConfigError, ModelStateError
from pyengine.events import logger
from pyengine.integrations.sb3 import identity, logs
from pyengine.integrations.sb3.iterations import IterationLog
from pyengine.integrations.sb3.siblings import SiblingState
from pyengine.integrations.sb3.state import (
    ExplorationState,
    ModelState,
    components,
    process_generators,
    set_process_generators,
)

_ENVIRONMENT = "environment"


class SnapshotCallback(BaseCallback):
    """Start a run, or resume it where it stopped; the script stays the same.

        model = DQN("CnnPolicy", env, buffer_size=100_000)
        model.learn(TOTAL, callback=SnapshotCallback("runs/pong", every_steps=2_000))

    TOTAL is absolute: a run killed at step 7,000 of 10,000 makes 3,000 more. Snapshots are taken at
    the first rollout after `every_steps` steps of all environments (as `num_timesteps` counts), or
    `every_seconds`, whichever comes first, and at the end.

    `run_dir` is the run directory, below it a directory `name_prefix` if given. `keep_last` newest
    snapshots stay, and with `keep_best="rollout/ep_rew_mean"` or "eval/mean_reward" the one with the
    highest value too. `fresh=True` begins anew beside what is there, `eager=True` verifies the whole
    replay before training goes on. Other settings go to `pyengine.SnapshotEngine`. `verbose=1` prints
    what was restored and what is not saved.

    Raises, before anything in the run is touched, ModelMismatchError where the script's algorithm,
    spaces, environment or buffer are not those of the run; ModelStateError where the model has
    trained already, or the callback served before (several `learn()` calls: see `learn`);
    TruncatedLogError; and what `SnapshotEngine.restore` raises.
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
        self.run_dir = os.path.join(os.fspath(run_dir), name_prefix)
        self._settings = {
            "every_steps": every_steps, "every_seconds": every_seconds, "keep_last": keep_last,
            "keep_best": keep_best, "fresh": fresh, **engine_settings,
        }  # fmt: skip
        self._notes = dict(notes or {})
        self._eager = eager
        self._fresh = fresh
        self.engine: pyengine.SnapshotEngine | None = None
        self.report: pyengine.RestoreReport | None = None
        self._adoption: Adoption | None = None
        self._iterations: IterationLog | None = None
        self._late: tuple[Any, Any, ExplorationState] | None = None
        self._has_served = False
        self._in_phases = False
        self._is_torn = False
        self._skipped = 0
        self._last: pyengine.PendingSnapshot | None = None
        self._run_seed = 0

    # What the library calls, in the order in which it does.

    def _on_training_start(self) -> None:
        if self.engine is not None:
            return  # a later phase of `learn`
        if self._has_served:
            raise ModelStateError(
                "this callback has served a learn() already. For several learn() calls use its "
                "own: with SnapshotCallback(...) as run: run.learn(model, 10_000); "
                "run.learn(model, 20_000)"
            )
        self._check_untrained(self.model)
        self._has_served = True
        found = identity.describe(self.model)
        if not self._fresh:
            identity.check(self.run_dir, found)
        self.engine = pyengine.SnapshotEngine(
            self.run_dir,
            algorithm=found["algorithm"],
            notes={**self._notes, "stable_baselines3": found},
            **self._settings,
        )
        try:
            self._begin(self.engine)
        except BaseException:
            self._close()
            raise

    def _on_rollout_start(self) -> None:
        self._is_torn = False
        if self._late is not None:
            generators, exploration, state = self._late
            self._late = None
            state.set_state(exploration)
            set_process_generators(generators)
            return
        if self.engine is not None:
            self._note(self.engine.tick(self.model.num_timesteps, metrics=self._metrics()))

    def _on_step(self) -> bool:
        # The transition of this step is not stored yet.
        self._is_torn = True
        return True

    def _on_rollout_end(self) -> None:
        self._is_torn = False
        if self._iterations is not None:
            self._iterations.rollout_ended()

    def _on_training_end(self) -> None:
        if self.engine is None:
            return
        try:
            step = self.model.num_timesteps
            if self._last is None or self._last.step != step:
                self._last = self.engine.snapshot(step, metrics=self._metrics())
        finally:
            if not self._in_phases:
                self._close()

    # Several learn() calls in one script.

    def learn(self, model: BaseAlgorithm, total_timesteps: int, **settings: Any) -> BaseAlgorithm:
        """Train until `total_timesteps`, counted from the run's beginning; at once if it is past.

        For scripts that call `learn` several times, inside `with SnapshotCallback(...) as run:`.
        `settings` go to `model.learn`; a `callback=` among them runs beside this one.
        """
        if not self._in_phases:
            raise ModelStateError("use learn() inside `with SnapshotCallback(...) as run:`")
        others = settings.pop("callback", None)
        callbacks = others if isinstance(others, list) else [others] if others is not None else []
        first = self.engine is None
        done = 0 if first else model.num_timesteps
        model.learn(
            max(0, total_timesteps - done),
            callback=[self, *callbacks],
            reset_num_timesteps=first,
            **settings,
        )
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

    def _begin(self, engine: pyengine.SnapshotEngine) -> None:
        """Track everything, then restore it or start the run."""
        model = self.model
        venv = model.get_env()
        assert venv is not None
        root = self.locals.get("callback", self)
        siblings = SiblingState(root, self)
        state = ModelState(model)
        exploration = ExplorationState(model)
        engine.track(**components(model), model=state, exploration=exploration, callbacks=siblings)
        engine.track(run=self, logs=_LogSizes(model))
        environment = VecEnvState(venv)
        if environment.obstacles:
            engine.exclude(_ENVIRONMENT, f"reset: {'; '.join(environment.obstacles)}")
            engine.track(normalizer=environment.normalizer)
        else:
            engine.track(**{_ENVIRONMENT: environment})
        if getattr(model, "replay_buffer", None) is not None:
            self._adoption = adopt(model)
            engine.track(**self._adoption.objects)
        self._iterations = IterationLog.of(model, self.locals)
        unsaved = {**state.unsaved, **siblings.unsaved}
        self._say_what_is_not_saved(environment.obstacles, unsaved)
        self._run_seed = _run_seed(model)
        self._restore(engine, environment, exploration)

    def _restore(
        self, engine: pyengine.SnapshotEngine, environment: VecEnvState, late: ExplorationState
    ) -> None:
        model = self.model
        if not self._fresh:
            saved = identity.saved_logs(self.run_dir)
            logs.check_log_sizes(saved)
        self.report = report = engine.restore(eager=self._eager)
        if not report:
            return
        if environment.obstacles or self._is_torn:
            self._reset_environment(engine, environment)
        self.num_timesteps = model.num_timesteps
        self._late = (process_generators(), late.get_state(), late)
        self._print(str(report))

    def _reset_environment(self, engine: pyengine.SnapshotEngine, environment: VecEnvState) -> None:
        model = self.model
        venv = model.get_env()
        assert venv is not None
        sequence = np.random.SeedSequence([self._run_seed, engine.generation])
        seed = int(sequence.generate_state(1)[0] >> 1)
        model._last_obs = reset_after_restore(venv, seed)
        model._last_episode_starts = np.ones((venv.num_envs,), dtype=bool)
        normalizer = model.get_vec_normalize_env()
        if normalizer is not None:
            model._last_original_obs = normalizer.get_original_obs()
        if self._adoption is not None:
            self._adoption.close_open_episode()
        why = "; ".join(environment.obstacles) or "a callback stopped the run within a step"
        self._print(f"environments: reset with seed {seed} ({why}); the open episodes are closed")
        self._is_torn = False

    # What this callback itself saves (tracked as "run").

    def get_state(self) -> dict[str, Any]:
        """Return what of this callback belongs to the run."""
        return {
            "run_seed": self._run_seed,
            "n_calls": self.n_calls,
            "torn": self._is_torn,
            "skipped": self._skipped,
            "iterations": self._iterations.count if self._iterations is not None else 0,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self._run_seed = state["run_seed"]
        self.n_calls = state["n_calls"]
        self._is_torn = state["torn"]
        self._skipped = state["skipped"]
        if self._iterations is not None:
            self._iterations.go_on_from(state["iterations"])

    def _metrics(self) -> dict[str, float]:
        """Return what is known of how well the policy does, for the manifest and `keep_best`."""
        found: dict[str, float] = {}
        episodes = self.model.ep_info_buffer
        if episodes:
            found["rollout/ep_rew_mean"] = float(safe_mean([one["r"] for one in episodes]))
        for _, callback in self._tree():
            if isinstance(callback, EvalCallback) and len(callback.evaluations_results):
                found["eval/mean_reward"] = float(callback.last_mean_reward)
        if self._is_torn:
            found["environment_reset"] = 1.0
        return found

    def _tree(self) -> list[tuple[str, BaseCallback]]:
        from pyengine.integrations.sb3.siblings import walk

        return list(walk(self.locals.get("callback", self)))

    def _note(self, pending: pyengine.PendingSnapshot | None) -> None:
        """Record what the snapshot before cost, with the library's own logger."""
        if pending is None:
            return
        last, self._last = self._last, pending
        self.logger.record("snapshot/stall_seconds", pending.stall_seconds)
        if last is not None and last.outcome is not None:
            self.logger.record("snapshot/persist_seconds", last.outcome.persist_ns / 1e9)
            self.logger.record("snapshot/bytes_written", last.outcome.bytes_written)
        if self.engine is not None:
            self.logger.record("snapshot/skipped", self.engine.skipped)

    def _close(self) -> None:
        engine, self.engine = self.engine, None
        if self._iterations is not None:
            self._iterations.release()
            self._iterations = None
        if engine is not None:
            engine.close()

    def _check_untrained(self, model: BaseAlgorithm) -> None:
        buffer = getattr(model, "replay_buffer", None)
        rows = buffer.size() if buffer is not None else 0
        if model.num_timesteps or getattr(model, "_n_updates", 0) or rows:
            raise ModelStateError(
                f"the model has trained already ({model.num_timesteps} steps, "
                f"{getattr(model, '_n_updates', 0)} updates, {rows} rows): attach the callback to the "
                "first learn(), with reset_num_timesteps left at True"
            )

    def _say_what_is_not_saved(
        self, obstacles: tuple[str, ...], unsaved: Mapping[str, str]
    ) -> None:
        for obstacle in obstacles:
            self._print(f"environments will be reset on resume: {obstacle}")
        for name, why in unsaved.items():
            self._print(f"NOT saved: {name}: {why}")
        for note in self._adoption.notes if self._adoption is not None else ():
            self._print(note)

    def _print(self, text: str) -> None:
        if self.verbose:
            print(text)
        else:
            logger.info("%s", text)


class _LogSizes:
    """How long each log file was; checked before a restore, never put back."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self._model = model

    def get_state(self) -> dict[str, int]:
        return logs.log_sizes(self._model)

    def set_state(self, state: dict[str, int]) -> None:
        """Do nothing: `logs.check_log_sizes` has compared it before."""


def _run_seed(model: BaseAlgorithm) -> int:
    if model.seed is not None:
        return int(model.seed)
    return int(np.random.SeedSequence().entropy) % (1 << 63)
