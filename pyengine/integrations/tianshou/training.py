"""One training: what is tracked, how it is put back, and how its epochs are run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tianshou.trainer import OnlineTrainerParams

import pyengine
from pyengine.capture.environment import EnvironmentState
from pyengine.capture.protocol import type_text
from pyengine.errors import CaptureError, PyengineError, ReplacedObjectError
from pyengine.events import logger
from pyengine.format.levels import EXACT, PARTIAL
from pyengine.integrations.tianshou.buffers import LAYOUT, Adoption, adopt
from pyengine.integrations.tianshou.buffers.state import Draws, Priorities
from pyengine.integrations.tianshou.environments import (
    VectorEnvState,
    normalizer_state,
    reset_after_restore,
    set_normalizer_state,
)
from pyengine.integrations.tianshou.progress import Collected, Progress
from pyengine.integrations.tianshou.walk import Attributes, Networks

ENVIRONMENT = "environment"
CONDITION = "at the beginning of a training step, epoch borders included"
"""What "exact" holds under: snapshots are taken nowhere else."""

_SEED_LIMIT = 1 << 31
_REASON_LENGTH = 1000
_OWNED = frozenset(
    {
        # Saved by Progress, or given by the script.
        "algorithm", "params", "_logger", "_stat", "_start_time", "_start_epoch", "_epoch",
        "_current_update_step", "_env_step", "_env_episode", "_best_score", "_best_reward",
        "_best_reward_std", "_best_epoch", "_policy_update_time", "_compute_score_fn",
        "_stop_fn_flag", "_buffer",
    }
)  # fmt: skip


class Training:
    """A trainer and everything about it that an engine saves. Tracks it; restores nothing yet.

    `attributes` of the algorithm must have been made before training changed any; `say` prints a
    line.
    """

    def __init__(
        self,
        engine: pyengine.SnapshotEngine,
        trainer: Any,
        attributes: Attributes,
        say: Callable[[str], None],
        *,
        is_resumed: bool,
    ) -> None:
        self._engine = engine
        self._is_resumed = is_resumed
        self._trainer = trainer
        self._params = trainer.params
        self._attributes = attributes
        self._say = say
        self._progress = Progress(trainer)
        self._adoption: Adoption | None = None
        self._seed = int(np.random.SeedSequence().generate_state(1)[0])
        self._reset_reasons: dict[str, str] = {}
        self._missed: dict[str, str] = {}
        """Environments that could not be saved in the newest snapshot, and why."""
        self._told: set[str] = set()
        self._has_ring = False
        self._last_test: float | None = None
        self._skipped_step: int | None = None
        self._last: pyengine.PendingSnapshot | None = None
        online = isinstance(self._params, OnlineTrainerParams)
        self._collectors: dict[str, Any] = {}
        if online:
            self._collectors["training"] = self._params.training_collector
        if self._params.test_collector is not None:
            self._collectors["test"] = self._params.test_collector
        self._track()

    def _track(self) -> None:
        engine, trainer = self._engine, self._trainer
        engine.declare_level(EXACT, condition=CONDITION)
        self._networks = Networks(trainer.algorithm)
        self._parts = self._components()
        self._trainer_attributes = Attributes(trainer, passed=_OWNED)
        engine.track(
            networks=self._networks,
            **self._parts,
            algorithm=self._attributes,
            trainer=self._progress,
            trainer_attributes=self._trainer_attributes,
            run=self,
            normalizer=_Normalizers(self._collectors),
            **{f"{name}_collector": Collected(one) for name, one in self._collectors.items()},
        )
        self._track_buffer()
        self._track_environments()
        engine.exclude("logger", "files and writers of logs are the script's; when it writes next "
                       "is saved", harmless=True)  # fmt: skip
        self._say("not saved: log files, and statistics of epochs that are over")

    def _components(self) -> dict[str, Any]:
        """Return optimizers and schedulers by name."""
        walk = self._attributes.walk()
        named = {
            f"optimizer.{path.removesuffix('._optim')}": one
            for path, one in walk.optimizers.items()
        }
        schedulers = walk.schedulers.values()
        return named | {f"scheduler.{index}": one for index, one in enumerate(schedulers)}

    def _track_buffer(self) -> None:
        engine = self._engine
        collector = self._collectors.get("training")
        if "test" in self._collectors:
            engine.exclude("test_replay", "each test begins with an empty buffer", harmless=True)
        if collector is None:
            buffer = self._trainer._buffer
            engine.track(replay_draws=Draws(buffer))
            if hasattr(buffer, "weight"):
                engine.track(replay_priorities=Priorities(buffer))
            engine.exclude(
                "replay", "the script's own data, which training only reads", harmless=True
            )
            return
        is_on_policy = not hasattr(self._params, "update_step_num_gradient_steps_per_sample")
        adoption = self._adoption = adopt(collector.buffer, keeps_rows=not is_on_policy)
        layout = _saved_layout(engine) if self._is_resumed else None
        if layout is not None and "replay_cursors" in adoption.objects:
            adoption.lay_out(layout)
        engine.track(**adoption.objects)
        self._track_late()
        for note in adoption.notes:
            self._say(note)

    def _track_late(self) -> None:
        """Track the ring once there are rows."""
        if self._has_ring or self._adoption is None:
            return
        objects = self._adoption.late_objects()
        if objects:
            self._has_ring = True
            self._engine.track(**objects)
            self._engine.declare_static(LAYOUT)

    def _track_environments(self) -> None:
        self._environments = {
            name: VectorEnvState(collector.env) for name, collector in self._collectors.items()
        }
        for name, environment in self._environments.items():
            obstacles = environment.obstacles
            if obstacles:
                self._reset_reasons[name] = "; ".join(obstacles)[:_REASON_LENGTH]
                self._engine.exclude(f"{name}_{ENVIRONMENT}", f"reset: {self._reset_reasons[name]}")
                self._say(
                    f"{name} environments cannot be saved and are reset on resume: {obstacles[0]}"
                )
        saved = self._environments.keys() - self._reset_reasons.keys()
        for name in sorted(saved):
            state = EnvironmentState(
                get=partial(self._environment_state, name),
                set=partial(self._set_environment_state, name),
                check=partial(self._check_environment_state, name),
            )
            self._engine.track(**{f"{name}_{ENVIRONMENT}": state})

    def _environment_state(self, name: str) -> dict[str, Any]:
        try:
            state = {"state": self._environments[name].get_state()}
            self._missed.pop(name, None)
            return state
        except CaptureError as error:
            self._missed[name] = f"{name}_{ENVIRONMENT}: reset: {error}"[:_REASON_LENGTH]
            if self._reset_reasons.get(name) != str(error):
                self._say(f"{name} environments could not be saved this time: {error}")
                self._reset_reasons[name] = str(error)
            return {"reset": str(error)}
        finally:
            level = PARTIAL if self._missed else EXACT
            reasons = self._missed.values()
            self._engine.declare_level(level, condition=CONDITION, reasons=tuple(reasons))

    def _check_environment_state(self, name: str, saved: dict[str, Any]) -> None:
        if "state" in saved:
            self._environments[name].check_state(saved["state"])

    def _set_environment_state(self, name: str, saved: dict[str, Any]) -> None:
        if "state" in saved:
            self._environments[name].set_state(saved["state"])
        else:
            self._reset_reasons[name] = saved["reset"]

    def restore(self, *, eager: bool) -> pyengine.RestoreReport:
        """Put the newest snapshot back, or begin; environments that were not saved are reset."""
        # Environments that could not be saved then can perhaps be saved now: no mismatch.
        names = [f"{name}_{ENVIRONMENT}" for name in self._environments]
        report = self._engine.restore(eager=eager, allow=names)
        if not report:
            return report
        self._skipped_step = report.global_step
        self._track_late()
        for name in self._environments:
            if name in self._reset_reasons:
                continue
            if report.component(f"{name}_{ENVIRONMENT}").found != "restored":
                self._reset_reasons[name] = "the snapshot was taken without them"
        for name in self._reset_reasons:
            self._begin_episodes_anew(name)
        return report

    def _begin_episodes_anew(self, name: str) -> None:
        which = list(self._environments).index(name)
        seeds = np.random.SeedSequence([self._seed, self._engine.generation, which])
        seed = int(seeds.generate_state(1)[0]) % _SEED_LIMIT
        reset_after_restore(self._collectors[name], seed)
        if name == "training" and self._adoption is not None:
            self._adoption.close_open_episodes()
        self._say(
            f"{name} environments: reset with seed {seed}, open episodes cut off "
            f"({self._reset_reasons[name]})"
        )

    def training_fn(self, own: Callable[[int, int], None] | None) -> Callable[[int, int], None]:
        """Return the function for the parameters: a snapshot if one is due, then the script's."""

        def begin(epoch: int, env_step: int) -> None:
            self._progress.is_within_step = True
            try:
                self._tick()
            finally:
                self._progress.is_within_step = False
            if own is not None:
                own(epoch, env_step)

        return begin

    def _tick(self) -> None:
        if self._adoption is not None:
            self._adoption.check(self._collectors["training"].buffer)
        self._track_late()
        self._tell_unsaved()
        step = int(self._trainer._env_step)
        if step != self._skipped_step:
            self._skipped_step = None
            self._last = self._engine.tick(step, metrics=self.metrics) or self._last

    def run(self) -> None:
        """Run the epochs that are left."""
        trainer, params, progress = self._trainer, self._params, self._progress
        while trainer._epoch < params.max_epochs and not trainer._stop_fn_flag:
            if self._adoption is None:
                self._tick()
            done, progress.resumed_steps = progress.resumed_steps, 0
            progress.epoch_began = trainer._env_step - done
            whole = params.epoch_num_steps
            params.epoch_num_steps = whole - done
            try:
                stats = trainer.execute_epoch()
            finally:
                params.epoch_num_steps = whole
            test = stats.test_collect_stat
            if test is not None and test.returns_stat is not None:
                self._last_test = float(test.returns_stat.mean)

    def finish(self) -> None:
        """Take the last snapshot, unless there is one of this step already."""
        step = int(self._trainer._env_step)
        newest = self._last.step if self._last is not None else self._skipped_step
        self._track_late()
        if newest != step:
            self._engine.snapshot(step, metrics=self.metrics())

    def metrics(self) -> dict[str, float]:
        """Return what is known of how well the policy does.

        Asked for with each snapshot: raises as `check_parts` does.
        """
        self.check_parts()
        found = {}
        if self._params.test_collector is not None:
            found["test/best_reward"] = float(self._trainer._best_reward)
        if self._last_test is not None:
            found["test/reward"] = self._last_test
        return {name: value for name, value in found.items() if np.isfinite(value)}

    def check_parts(self) -> None:
        """Raise ReplacedObjectError where a part is another object than the one that is saved.

        A snapshot would hold the old one, silently.
        """
        present = self._components() | _named(Networks(self._trainer.algorithm))
        tracked = self._parts | _named(self._networks)
        for name in dict.fromkeys((*tracked, *present)):
            if present.get(name) is not tracked.get(name):
                raise ReplacedObjectError(
                    f"the algorithm's {name} was replaced after training began, and the run saves "
                    "the former one: change it in place (load_state_dict), or do it before "
                    "run_training()",
                    component=name,
                )
        for name, collector in self._collectors.items():
            if getattr(self._params, f"{name}_collector") is not collector:
                raise ReplacedObjectError(
                    f"the {name} collector was replaced after training began", component=name
                )

    def _tell_unsaved(self) -> None:
        found = {**self._attributes.unsaved, **self._trainer_attributes.unsaved, **self._hooks()}
        for name, why in found.items():
            if name not in self._told:
                self._told.add(name)
                self._engine.exclude(_excluded_name(name), why[:_REASON_LENGTH])
                self._say(f"NOT saved: {name}: {why}")
        for name in self._adoption.extras() if self._adoption is not None else ():
            if name not in self._told:
                self._told.add(name)
                self._say(f"{name} of the rows is copied whole into every snapshot")

    def _hooks(self) -> dict[str, str]:
        """Return what collectors call for each step or episode, where that may hold state."""
        held = {
            f"{name}_collector.{hook}": getattr(collector, f"_{hook}", None)
            for name, collector in self._collectors.items()
            for hook in ("on_step_hook", "on_episode_done_hook")
        }
        return {
            name: f"attributes of {type_text(hook)}"
            for name, hook in held.items()
            if getattr(hook, "__dict__", None)
        }

    def get_state(self) -> dict[str, Any]:
        """Return what else belongs to the run."""
        return {"seed": self._seed, "last_test": self._last_test}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self._seed = state["seed"]
        self._last_test = state["last_test"]


class _Normalizers:
    """Statistics of normalising wrappers, which outlive a reset."""

    def __init__(self, collectors: dict[str, Any]) -> None:
        self._collectors = collectors

    def get_state(self) -> dict[str, Any]:
        return {name: normalizer_state(one.env) for name, one in self._collectors.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        for name, one in self._collectors.items():
            set_normalizer_state(one.env, state[name])


def _saved_layout(engine: pyengine.SnapshotEngine) -> dict[str, Any] | None:
    """Return what a row of the run is, by the newest snapshot that can tell; None without rows."""
    for info in reversed(pyengine.open_run(engine.run_dir).snapshots):
        if not any(one.name == LAYOUT and one.status == "saved" for one in info.components):
            continue
        try:
            found: dict[str, Any] = pyengine.load(info.path, only=[LAYOUT])[LAYOUT]
        except (PyengineError, OSError) as error:
            logger.warning("%s: %s", info.path, error)  # the restore decides what becomes of it
            continue
        return found
    return None


def _named(networks: Networks) -> dict[str, Any]:
    """Return every module and parameter by name, those that were made for the snapshot apart."""
    modules = networks.named_modules()
    found = {name: one for name, one in modules if not isinstance(one, Networks)}
    return found | dict(networks.named_parameters())


def _excluded_name(name: str) -> str:
    """Return what an attribute that is not saved is called in manifests and reports."""
    plain = name.replace("/", "?").replace("\\", "?").encode("ascii", "replace").decode()
    return f"attribute {plain[:80]}"
