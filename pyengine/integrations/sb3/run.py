"""One run of a model: what is tracked, how it is put back, and how environments are begun anew."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.utils import safe_mean

import pyengine
from pyengine.capture.environment import EnvironmentState
from pyengine.capture.kinds.rng import process_generators, set_process_generators
from pyengine.errors import CaptureError, ReplacedObjectError
from pyengine.format.levels import EXACT, PARTIAL
from pyengine.integrations.gymnasium.walk import left_out
from pyengine.integrations.sb3 import logs
from pyengine.integrations.sb3.buffers import adopt
from pyengine.integrations.sb3.environments import (
    VecEnvState,
    normalizer_state,
    reset_after_restore,
    set_normalizer_state,
)
from pyengine.integrations.sb3.iterations import IterationLog
from pyengine.integrations.sb3.siblings import SiblingState, walk
from pyengine.integrations.sb3.state import (
    ExplorationState,
    ModelState,
    components,
)

ENVIRONMENT = "environment"
LEFT_OUT = "environment in part"
"""Under this name manifests and reports list what of environments is not saved."""

_SEED_LIMIT = 1 << 31
_OBSTACLES_SHOWN = 3
_REASON_LENGTH = 1000


class ModelRun:
    """A model and everything about it that an engine saves; owns the adoption of its buffer.

    `learn_locals` are the local variables of the model's learn(), `own` the callback that is not
    saved with the others, `say` prints a line. Tracks everything; restores nothing yet.
    """

    def __init__(
        self,
        engine: pyengine.SnapshotEngine,
        model: BaseAlgorithm,
        learn_locals: Mapping[str, Any],
        own: BaseCallback,
        say: Callable[[str], None],
    ) -> None:
        venv = model.get_env()
        assert venv is not None
        self._engine = engine
        self._model = model
        self._venv = venv
        self._say = say
        self._root: BaseCallback = learn_locals.get("callback") or own
        self._own = own
        self._late: list[tuple[_State, Any]] = []
        self._late_generators: dict[str, Any] = {}
        self._told: set[str] = set()
        self._seed = _seed_of(model)
        self._reset_reason = ""
        self.is_torn = False
        """Whether the last step's transition is not stored: a callback stopped the run."""
        self._iterations = IterationLog.of(model, learn_locals)
        self._exploration = ExplorationState(model)
        self._siblings = SiblingState(self._root, own)
        self._state = ModelState(model)
        has_buffer = getattr(model, "replay_buffer", None) is not None
        self._adoption = adopt(model) if has_buffer else None
        self._track()

    def _track(self) -> None:
        model, engine = self._model, self._engine
        engine.declare_level(EXACT)
        self._components = components(model)
        engine.track(
            **self._components,
            model=self._state,
            exploration=self._exploration,
            callbacks=self._siblings,
            run=self,
            logs=logs.LogSizes(model),
            logger=logs.PendingValues(model),
            normalizer=_Normalizer(self),
        )
        if self._adoption is not None:
            engine.track(**self._adoption.objects)
            for note in self._adoption.notes:
                self._say(note)
        self._tell_unsaved()
        self._environment = VecEnvState(self._venv)
        obstacles = self._environment.obstacles
        if obstacles:
            self._reset_reason = _shortened(obstacles)
            engine.exclude(ENVIRONMENT, f"reset: {self._reset_reason}")
            self._say(f"environments cannot be saved and are reset on resume: {obstacles[0]}")
            for obstacle in obstacles[1:_OBSTACLES_SHOWN]:
                self._say(f"    and {obstacle}")
            return
        self._tell_left_out(self._environment.left_out)
        environment = EnvironmentState(
            get=self._environment_state,
            set=self._set_environment_state,
            check=self._check_environment_state,
        )
        engine.track(**{ENVIRONMENT: environment})

    def _tell_unsaved(self) -> None:
        for name, why in {**self._state.unsaved, **self._siblings.unsaved}.items():
            if name not in self._told:
                self._told.add(name)
                self._engine.exclude(_excluded_name(name), why[:_REASON_LENGTH])
                self._say(f"NOT saved: {name}: {why}")

    def _tell_left_out(self, parts: tuple[str, ...]) -> None:
        """Say, once each, what environments with `partial=True` leave out; snapshots list it."""
        if not set(parts) <= self._told:
            self._engine.exclude(LEFT_OUT, _shortened(parts))
        for part in parts:
            if part not in self._told:
                self._told.add(part)
                self._say(f"environments are saved in part, NOT saved: {part}")

    def _environment_state(self) -> dict[str, Any]:
        if self.is_torn:
            return self._reset("a callback stopped the run within a step")
        try:
            state = self._environment.get_state()
        except CaptureError as error:
            if str(error) != self._reset_reason:
                self._say(f"environments could not be saved this time: {error}")
                self._reset_reason = str(error)
            return self._reset(str(error))
        self._engine.declare_level(EXACT)
        self._tell_left_out(tuple(left_out(state)))
        return {"state": state}

    def _reset(self, reason: str) -> dict[str, Any]:
        self._engine.declare_level(
            PARTIAL, reasons=[f"{ENVIRONMENT}: reset: {reason[:_REASON_LENGTH]}"]
        )
        return {"reset": reason}

    def _check_environment_state(self, saved: dict[str, Any]) -> None:
        if "state" in saved:
            self._environment.check_state(saved["state"])

    def _set_environment_state(self, saved: dict[str, Any]) -> None:
        self._reset_reason = saved.get("reset", "")
        if "state" in saved:
            self._environment.set_state(saved["state"])

    def restore(self, *, eager: bool) -> pyengine.RestoreReport:
        """Put the newest snapshot back, or begin; environments that were not saved are reset."""
        # Environments that could not be saved then can perhaps be saved now: no mismatch.
        report = self._engine.restore(eager=eager, allow=(ENVIRONMENT,))
        if not report:
            return report
        if not self._reset_reason and report.component(ENVIRONMENT).found != "restored":
            self._reset_reason = "the snapshot was taken without them"
        for line in self._siblings.changes:
            self._say(line)
        if self._reset_reason:
            self._begin_episodes_anew()
        parts: tuple[_State, ...] = (self._exploration, self._state, self._siblings)
        # Copies: until the rollout starts, other callbacks change what was put back.
        self._late = [(part, copy.deepcopy(part.get_state())) for part in parts]
        self._late_generators = process_generators()
        return report

    def _begin_episodes_anew(self) -> None:
        model = self._model
        seeds = np.random.SeedSequence([self._seed, self._engine.generation])
        seed = int(seeds.generate_state(1)[0]) % _SEED_LIMIT
        model._last_obs = reset_after_restore(self._venv, seed)
        model._last_episode_starts = np.ones((self._venv.num_envs,), dtype=bool)
        normalizer = model.get_vec_normalize_env()
        if normalizer is not None:
            model._last_original_obs = normalizer.get_original_obs()
        if self._adoption is not None:
            self._adoption.close_open_episode()
        self._say(
            f"environments: reset with seed {seed}, open episodes closed ({self._reset_reason})"
        )
        self._reset_reason = _shortened(self._environment.obstacles)

    def rollout_starts(self) -> bool:
        """Put back what was changed since the restore; whether that was to be done.

        Exploration has drawn from generators, other callbacks have run their `on_training_start`
        and, those before this one, the `on_rollout_start` that the snapshot already knows. Raises
        ReplacedObjectError where the model's replay buffer was replaced meanwhile.
        """
        if self._adoption is not None:
            self._adoption.check(self._model)
        self._tell_unsaved()
        if not self._late:
            return False
        late, self._late = self._late, []
        for part, state in late:
            part.set_state(state)
        set_process_generators(self._late_generators)
        return True

    def is_of(self, model: BaseAlgorithm) -> bool:
        """Whether this is the model that the run saves."""
        return model is self._model

    def check_parts(self) -> None:
        """Raise ReplacedObjectError where a part of the model is not the object that is saved.

        A snapshot would hold the old one, silently.
        """
        present = components(self._model)
        for name in dict.fromkeys((*self._components, *present)):
            if present.get(name) is not self._components.get(name):
                raise ReplacedObjectError(
                    f"the model's {name} was replaced after training began, and the run saves the "
                    "former one: change it in place (load_state_dict), or do it before learn()",
                    component=name,
                )

    def rollout_ended(self) -> None:
        """Count it, for logs that go by the number of rollouts."""
        if self._iterations is not None:
            self._iterations.rollout_ended()

    def learn_ended(self) -> None:
        """Count rollouts anew in the learn() that comes next, unless this one had none to make."""
        if self._iterations is not None and not self._late:
            self._iterations.learn_ended()

    def metrics(self) -> dict[str, float]:
        """Return what is known of how well the policy does; and 1 where environments are reset.

        Asked for with each snapshot: raises as `check_parts` does.
        """
        self.check_parts()
        found: dict[str, float] = {}
        episodes = self._model.ep_info_buffer
        if episodes:
            found["rollout/ep_rew_mean"] = float(safe_mean([one["r"] for one in episodes]))
        for _, callback in walk(self._root):
            if isinstance(callback, EvalCallback) and np.isfinite(callback.last_mean_reward):
                found["eval/mean_reward"] = float(callback.last_mean_reward)
        if self.is_torn:
            found["environment_reset"] = 1.0
        return found

    def release(self) -> None:
        """Give the model back as the library knows it; the buffer stays adopted."""
        if self._iterations is not None:
            self._iterations.release()

    @property
    def normalizer(self) -> list[dict[str, dict[str, Any]]]:
        """Statistics of VecNormalize, which outlive a reset."""
        return normalizer_state(self._venv)

    @normalizer.setter
    def normalizer(self, state: list[dict[str, dict[str, Any]]]) -> None:
        set_normalizer_state(self._venv, state)

    def get_state(self) -> dict[str, Any]:
        """Return what else belongs to the run."""
        iterations = self._iterations.count if self._iterations is not None else 0
        return {"seed": self._seed, "calls": self._own.n_calls, "iterations": iterations}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self._seed = state["seed"]
        self._own.n_calls = state["calls"]
        if self._iterations is not None:
            self._iterations.go_on_from(state["iterations"])
        if self._environment.obstacles:
            self._reset_reason = _shortened(self._environment.obstacles)


class _State(Protocol):
    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...


class _Normalizer:
    """The normalisers' statistics as a component of their own."""

    def __init__(self, run: ModelRun) -> None:
        self._run = run

    def get_state(self) -> list[dict[str, dict[str, Any]]]:
        return self._run.normalizer

    def set_state(self, state: list[dict[str, dict[str, Any]]]) -> None:
        self._run.normalizer = state


def _shortened(obstacles: tuple[str, ...]) -> str:
    """Return the first obstacles as one text that a manifest can hold; each environment has its."""
    more = len(obstacles) - _OBSTACLES_SHOWN
    shown = "; ".join(obstacles[:_OBSTACLES_SHOWN])[:_REASON_LENGTH]
    return f"{shown}; and {more} more" if more > 0 else shown


def _excluded_name(name: str) -> str:
    """Return what an attribute that is not saved is called in manifests and reports."""
    plain = name.replace("/", "?").replace("\\", "?").encode("ascii", "replace").decode()
    return f"attribute {plain[:80]}"


def _seed_of(model: BaseAlgorithm) -> int:
    if model.seed is not None:
        return int(model.seed)
    return int(np.random.SeedSequence().generate_state(1)[0])
