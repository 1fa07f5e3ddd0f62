"""TrainingRun: a TorchRL training that is saved as it goes, and goes on where it was killed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np
from torchrl.envs import TransformedEnv
from torchrl.objectives import LossModule

import pyengine
from pyengine.capture.environment import EnvironmentState
from pyengine.errors import ConfigError
from pyengine.events import logger
from pyengine.format.levels import EXACT, STATE_COMPLETE, LevelName
from pyengine.integrations.settings import refuse_dropping
from pyengine.integrations.torchrl import identity
from pyengine.integrations.torchrl.buffers import BufferState, StorageState
from pyengine.integrations.torchrl.collector import CollectorEnvironment, CollectorState

RING = "replay"
ENVIRONMENT = "environment"
CONDITION = "without prefetch and with one collector"
"""What "exact" holds under; runs that have either are "state-complete"."""

_SEED_LIMIT = 1 << 31
_REASON_LENGTH = 1000


class TrainingRun:
    """Saves a training with TorchRL's parts, and puts it back.

        rb = TensorDictReplayBuffer(storage=RingStorage(1_000_000), batch_size=256)
        run = TrainingRun("runs/x", replay_buffer=rb, collector=collector, every_steps=10_000)
        run.track(policy=policy, loss=loss_module, optimizer=optimizer)
        run.restore()
        for data in collector:
            rb.extend(data)
            ...  # learn
            run.tick()
        run.close()

    `replay_buffer` is a ReplayBuffer or TensorDictReplayBuffer over a RingStorage, without elements
    yet, `collector` a Collector in this process; both may be left out. Everything else (modules,
    optimizers, schedulers, counters) is tracked by name. Steps are the collector's frames unless
    given. `seed` seeds environments that have to be reset (default: drawn, and saved). Other
    settings go to `pyengine.SnapshotEngine`.

    `level` says what a resumed run is: "exact", or "state-complete", and `reasons` why. Everything
    is put back in both; what is not the same then is what was drawn ahead (prefetch), or the
    episodes of environments that have to be reset. `refuse_inexact=True` raises ConfigError
    instead.

    Raises, before the run is touched, ModelMismatchError where buffer or collector are not those of
    the run, ConfigError and ModelStateError for parts that cannot be saved. A context manager.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        replay_buffer: Any = None,
        collector: Any = None,
        seed: int | None = None,
        refuse_inexact: bool = False,
        fresh: bool = False,
        notes: Mapping[str, Any] | None = None,
        **engine_settings: Any,
    ) -> None:
        refuse_dropping(engine_settings.get("on_damage", "raise"), "TorchRL")
        self.run_dir = os.fspath(run_dir)
        self._fresh = fresh
        self._seed = int(np.random.SeedSequence(seed).generate_state(1)[0]) % _SEED_LIMIT
        self._buffer = BufferState(replay_buffer) if replay_buffer is not None else None
        self._collector = CollectorState(collector) if collector is not None else None
        self._environment = CollectorEnvironment(collector) if collector is not None else None
        self.reasons = self._reasons()
        if refuse_inexact and self.reasons:
            raise ConfigError(f"this training cannot go on exactly: {'; '.join(self.reasons)}")
        found = self._describe(collector)
        if not fresh:
            identity.DESCRIPTION.check(self.run_dir, found)
        self._ring_is_tracked = False
        self._newest_step: int | None = None
        self.engine = pyengine.SnapshotEngine(
            self.run_dir,
            fresh=fresh,
            notes={**(notes or {}), identity.DESCRIPTION.note: {**found, "level": self.level}},
            **engine_settings,
        )
        try:
            self._track()
        except BaseException:
            self.engine.close()
            raise

    @property
    def level(self) -> LevelName:
        """How a resumed run goes on: EXACT or STATE_COMPLETE."""
        return STATE_COMPLETE if self.reasons else EXACT

    def _reasons(self) -> tuple[str, ...]:
        reasons: list[str] = []
        if self._buffer is not None and self._buffer.is_ahead:
            # Which of the threads draws first is not decided by any seed, so that no two runs of
            # the script are alike to begin with. A queue saved would only make snapshots large.
            reasons.append(
                "prefetch: batches that other threads have drawn ahead are not saved, and drawn "
                "anew on resume"
            )
        if self._environment is not None and self._environment.obstacles:
            shown = "; ".join(self._environment.obstacles[:3])[:_REASON_LENGTH]
            reasons.append(f"environments are reset on resume: {shown}")
        if self._collector is None and self._buffer is not None:
            reasons.append("no collector is saved; track your environments' state for exactness")
        return tuple(reasons)

    def _describe(self, collector: Any) -> dict[str, Any]:
        found = self._buffer.describe() if self._buffer is not None else {}
        if collector is not None:
            found["environment"] = _names_of(collector.env)
            found["frames_per_batch"] = int(collector.frames_per_batch)
        return identity.DESCRIPTION.whole(found)

    def _track(self) -> None:
        engine = self.engine
        condition = None if self.reasons else CONDITION
        engine.declare_level(self.level, condition=condition, reasons=self.reasons)
        engine.track(run=self)
        if self._buffer is not None:
            storage = self._buffer.storage
            layout = None if self._fresh else identity.saved_layout(self.run_dir)
            if layout is not None:
                storage.make_rows(layout)
            index = {identity.INDEX: StorageState(storage)}
            engine.track(**index, replay_buffer=self._buffer)
            self._track_ring()
            if self._buffer.generator is not None:
                engine.track(replay_generator=self._buffer.generator)
        if self._collector is not None and self._environment is not None:
            environment = EnvironmentState(
                get=self._environment.get_state,
                set=self._environment.set_state,
                check=self._environment.check_state,
            )
            engine.track(collector=self._collector, **{ENVIRONMENT: environment})
        for reason in self.reasons:
            logger.warning("%s: %s; %s", self.run_dir, self.level, reason)

    def _track_ring(self) -> None:
        """Track the ring once there is one: the first element decides what it holds."""
        if self._buffer is None or self._ring_is_tracked or not self._buffer.storage.initialized:
            return
        self.engine.track(**{RING: self._buffer.storage.rows.ring})
        self._ring_is_tracked = True

    def track(self, **objects: Any) -> TrainingRun:
        """Save these objects too, as `SnapshotEngine.track` does. Returns the run.

        A LossModule without a value estimator gets its default one now, as by its first call.
        """
        for value in objects.values():
            # Else a fresh start would have other entries to restore than the snapshot.
            if isinstance(value, LossModule) and value.default_value_estimator is not None:
                _ = value.value_estimator  # made when it is asked for
        self.engine.track(**objects)
        return self

    def restore(self, *, eager: bool = False) -> pyengine.RestoreReport:
        """Put the newest snapshot back, or begin; call it once, before the first step.

        Environments that were not saved are reset with a seed from the run's, and the number of
        this start; the open episodes in the buffer are ended then. Raises as
        `SnapshotEngine.restore` does.
        """
        # A snapshot from before the first element has no ring.
        report = self.engine.restore(eager=eager, allow=(RING,))
        if not report:
            return report
        self._newest_step = report.global_step
        if self._environment is None:
            self._end_episodes_unless_restored(report)
        elif self._environment.reset_reason:
            self._begin_episodes_anew(self._environment, self._environment.reset_reason)
        return report

    def _end_episodes_unless_restored(self, report: pyengine.RestoreReport) -> None:
        goes_on = any(
            one.kind == "environment" and one.found == "restored" for one in report.components
        )
        if self._buffer is not None and not goes_on:
            self._buffer.close_open_episodes()

    def _begin_episodes_anew(self, environment: CollectorEnvironment, reason: str) -> None:
        assert self._collector is not None
        seeds = np.random.SeedSequence([self._seed, self.engine.generation])
        seed = int(seeds.generate_state(1)[0]) % _SEED_LIMIT
        self._collector.reset(seed)
        environment.put_statistics_back()
        if self._buffer is not None:
            self._buffer.close_open_episodes()
        logger.warning(
            "%s: environments reset with seed %d, open episodes ended (%s)",
            self.run_dir,
            seed,
            reason,
        )

    def tick(self, step: int | None = None, metrics: Any = None) -> pyengine.PendingSnapshot | None:
        """Take a snapshot if one is due; the last statement of an iteration.

        `step` counts frames (default: the collector's). Raises as `SnapshotEngine.tick` does, and
        ReplacedObjectError where a part of the buffer was replaced.
        """
        self._check()
        step = self._step(step)
        pending = self.engine.tick(step, metrics)
        if pending is not None:
            self._newest_step = step
        return pending

    def snapshot(
        self, step: int | None = None, metrics: Mapping[str, float] | None = None
    ) -> pyengine.PendingSnapshot:
        """Take a snapshot now; as `SnapshotEngine.snapshot`, with the steps of `tick`."""
        self._check()
        step = self._step(step)
        pending = self.engine.snapshot(step, metrics)
        self._newest_step = step
        return pending

    def _check(self) -> None:
        if self._buffer is not None:
            self._buffer.check_parts()
        self._track_ring()

    def _step(self, step: int | None) -> int:
        if step is not None:
            return step
        if self._collector is None:
            raise ConfigError("step: without a collector the run cannot count; run.tick(step)")
        return self._collector.frames

    def saves(self, replay_buffer: Any) -> bool:
        """Return whether this is the buffer that the run saves."""
        return self._buffer is not None and self._buffer.is_of(replay_buffer)

    def close(self, *, final: int | None = None) -> None:
        """Wait until everything is durable and end the run; `final`: with one snapshot more, of
        that step, unless there is one. Idempotent."""
        try:
            if final is not None and self._newest_step != final:
                self.snapshot(final)
        finally:
            self.engine.close()

    def get_state(self) -> dict[str, Any]:
        """Return what else belongs to the run."""
        return {"seed": self._seed}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self._seed = state["seed"]

    def __enter__(self) -> TrainingRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _names_of(env: Any) -> str:
    """Return the classes of an environment and its transforms, outermost first."""
    if not isinstance(env, TransformedEnv):
        return f"{type(env).__name__}{list(env.batch_size)}"
    transforms = getattr(env.transform, "transforms", None)
    inner = [env.transform] if transforms is None else list(transforms)
    named = ", ".join(type(one).__name__ for one in inner)
    return f"{type(env).__name__}({_names_of(env.base_env)}, {named})"
