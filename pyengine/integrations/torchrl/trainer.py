"""SnapshotHook: the one line that makes a torchrl.trainers.Trainer resumable.

A Trainer calls its hooks in a fixed order. State goes back in `setup`, right before it collects for
the first time. Snapshots are taken at the end of an iteration, after all that logs and evaluates:
`post_steps` comes before these, and an evaluation draws from the generators. So the hook is put
behind the last of `post_steps_log` when training begins; `shutdown` takes the last one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
from torchrl.trainers import ReplayBufferTrainer, Trainer
from torchrl.trainers.trainers import TrainerHookBase

import pyengine
from pyengine.capture.protocol import state_methods, type_text
from pyengine.errors import ConfigError, ModelStateError
from pyengine.integrations.torchrl.run import TrainingRun

_COUNTERS = ("collected_frames", "_last_log", "_last_save", "_optim_count")
_TRACKED_OTHERWISE = frozenset({"optimizer", "replay_buffer", "snapshots"})


class SnapshotHook(TrainerHookBase):
    """Start a Trainer's run, or resume it where it stopped; the script stays the same.

        with SnapshotHook("runs/dqn", every_steps=10_000) as hook:
            hook.register(trainer)
            trainer.train()

    Steps are the trainer's `collected_frames`. Settings are those of TrainingRun. Saved are the
    loss module (with targets), optimizer, policy with its exploration, replay buffer, collector and
    environment, counters, other hooks with a state_dict. `report` and `run` are there once
    `train()` has begun.

    Raises ConfigError for a trainer that collects or learns elsewhere, ModelStateError for one that
    has trained, and what TrainingRun raises.
    """

    def __init__(self, run_dir: str | os.PathLike[str], **settings: Any) -> None:
        self._run_dir = run_dir
        self._settings = settings
        self._trainer: Any = None
        self.run: TrainingRun | None = None
        self.report: pyengine.RestoreReport | None = None

    def register(self, trainer: Trainer, name: str = "snapshots") -> None:
        """Take part in `trainer`, until its `train()` ends."""
        if getattr(trainer, "learner_backend", "local") != "local" or trainer.async_collection:
            raise ConfigError(
                "a trainer whose collector or learner runs elsewhere is never at rest; snapshots "
                "need async_collection=False and learner_backend='local'"
            )
        self._trainer = trainer
        trainer.register_op("setup", self._setup)
        trainer.register_op("shutdown", self._shutdown)
        trainer.register_module(name, self)

    def _setup(self) -> None:
        trainer = self._trainer
        if trainer.collected_frames:
            raise ModelStateError(
                f"the trainer has collected {trainer.collected_frames} frames already: a run saves "
                "it from the first one on"
            )
        self.run = run = TrainingRun(
            self._run_dir,
            replay_buffer=_buffer_of(trainer),
            collector=trainer.collector,
            **self._settings,
        )
        try:
            run.track(**_parts_of(trainer, self), trainer=TrainerState(trainer))
            self.report = run.restore()
        except BaseException:
            self.close()
            raise
        trainer.register_op("post_steps_log", self._iteration_ended)

    def _iteration_ended(self, batch: Any) -> None:
        if self.run is not None:
            self.run.tick(self._trainer.collected_frames)

    def _shutdown(self) -> None:
        run, self.run = self.run, None
        if run is not None:
            run.close(final=self._trainer.collected_frames)

    def close(self) -> None:
        """End the run without a last snapshot. Idempotent."""
        run, self.run = self.run, None
        if run is not None:
            run.close()

    def __enter__(self) -> SnapshotHook:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the run directory has it all."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take nothing."""


class TrainerState:
    """The trainer's own counters, and its hooks that have a state_dict."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def get_state(self) -> dict[str, Any]:
        """Return counters, and the state of hooks by their names."""
        hooks = {name: methods.get() for name, methods in self._hooks()}
        counters = {name: getattr(self._trainer, name) for name in _COUNTERS}
        return {"counters": {**counters, "_last_log": dict(counters["_last_log"])}, "hooks": hooks}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back; hooks of a name that is not here any more are left out."""
        for name, value in state["counters"].items():
            setattr(self._trainer, name, value)
        for name, methods in self._hooks():
            if name in state["hooks"]:
                methods.set(state["hooks"][name])

    def _hooks(self) -> Iterator[tuple[str, Any]]:
        held = dict(self._trainer._modules)
        updater = getattr(self._trainer, "target_net_updater", None)
        if updater is not None:
            held["target_net_updater"] = updater
        for name, hook in held.items():
            is_known = name in _TRACKED_OTHERWISE or isinstance(
                hook, (ReplayBufferTrainer, SnapshotHook, torch.nn.Module, torch.optim.Optimizer)
            )
            methods = None if is_known else state_methods(hook)
            if methods is not None:
                yield name, methods


def _parts_of(trainer: Any, own: SnapshotHook) -> dict[str, Any]:
    """Return what is tracked under names of its own."""
    parts: dict[str, Any] = {"loss": trainer.loss_module}
    optimizers = {id(one): one for one in _optimizers_of(trainer)}
    for index, optimizer in enumerate(optimizers.values()):
        parts["optimizer" if not index else f"optimizer_{index}"] = optimizer
    policy = trainer.collector._orig_policy or trainer.collector._wrapped_policy
    if isinstance(policy, torch.nn.Module) and policy.state_dict():
        parts["policy"] = policy
    for name, hook in trainer._modules.items():
        if isinstance(hook, torch.nn.Module):
            parts[f"hook {name}"] = hook
    return parts


def _optimizers_of(trainer: Any) -> Iterator[Any]:
    for holder in (trainer, *trainer._modules.values()):
        optimizer = getattr(holder, "optimizer", None)
        if isinstance(optimizer, torch.optim.Optimizer):
            yield optimizer


def _buffer_of(trainer: Any) -> Any:
    """Return the trainer's replay buffer, None where it has none; ConfigError for several."""
    hooks = [
        hook.replay_buffer
        for hook in trainer._modules.values()
        if isinstance(hook, ReplayBufferTrainer)
    ]
    own = [trainer.replay_buffer, getattr(trainer.collector, "replay_buffer", None)]
    found = {id(one): one for one in (*hooks, *own) if one is not None}
    if len(found) > 1:
        raise ConfigError(
            f"the trainer has {len(found)} replay buffers "
            f"({', '.join(type_text(one) for one in found.values())}); a run saves one"
        )
    return next(iter(found.values()), None)
