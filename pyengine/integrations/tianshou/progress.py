"""What a trainer and its collectors carry from one training step to the next."""

from __future__ import annotations

import time
from typing import Any

from gymnasium import spaces
from tianshou.data import Batch
from tianshou.utils import MovAvg

from pyengine.integrations.tianshou.walk import generators_of

_COUNTERS = (
    "_env_step", "_env_episode", "_best_score", "_best_reward", "_best_reward_std", "_best_epoch",
    "_policy_update_time", "_stop_fn_flag",
)  # fmt: skip
_COLLECTED = (
    "collect_step", "collect_episode", "collect_time", "_pre_collect_obs_RO",
    "_pre_collect_info_R", "_pre_collect_hidden_state_RH",
)  # fmt: skip
_LOGGED = "last_log_"


class Progress:
    """Counters of a trainer, the averages that it shows, and when its logger writes next.

    An epoch under way is told by the environment steps that it has had. Epochs and update steps
    are counted by the library before they are made; here they are those that were completed.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.is_within_step = False
        """Whether a training step has begun, and was counted, and has done nothing yet."""
        self.epoch_began = 0
        """The environment step at which the epoch under way began."""
        self.resumed_steps = 0
        """Environment steps that the next epoch has had in an earlier process."""

    def get_state(self) -> dict[str, Any]:
        """Return them."""
        trainer, ahead = self._trainer, int(self.is_within_step)
        counters = {name: getattr(trainer, name) for name in _COUNTERS if hasattr(trainer, name)}
        return {
            "counters": counters,
            "epoch": trainer._epoch - ahead,
            "update_step": trainer._current_update_step - ahead,
            "steps_of_epoch": self._steps_of_epoch(),
            "seconds": time.time() - trainer._start_time,
            "averages": {key: list(one.cache) for key, one in trainer._stat.items()},
            "logger": {
                name: value
                for name, value in vars(trainer._logger).items()
                if name.startswith(_LOGGED) and isinstance(value, int)
            },
        }

    def _steps_of_epoch(self) -> int:
        if not self.is_within_step:
            return self.resumed_steps
        return int(self._trainer._env_step - self.epoch_began)

    def set_state(self, state: dict[str, Any]) -> None:
        """Put them back, between two epochs of this process."""
        trainer = self._trainer
        for name, value in state["counters"].items():
            setattr(trainer, name, value)
        # A training step was under way in the epoch: that one is begun once more.
        trainer._epoch = state["epoch"]
        trainer._current_update_step = state["update_step"]
        trainer._start_time = time.time() - state["seconds"]
        self.resumed_steps = state["steps_of_epoch"]
        trainer._stat.clear()
        for key, cache in state["averages"].items():
            average = trainer._stat[key] = MovAvg()
            average.cache = list(cache)
        for name, value in state["logger"].items():
            if name in vars(trainer._logger):
                setattr(trainer._logger, name, value)


class Collected:
    """What a collector goes on from: observations, hidden states, counters, its action spaces."""

    def __init__(self, collector: Any) -> None:
        self._collector = collector

    def get_state(self) -> dict[str, Any]:
        """Return it; arrays are the live ones."""
        collector = self._collector
        held = {name: _taken_apart(getattr(collector, name, None)) for name in _COLLECTED}
        return {"held": held, "spaces": [_draws(one) for one in self._spaces()]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Put it back."""
        for name, value in state["held"].items():
            setattr(self._collector, name, _put_together(value))
        for space, saved in zip(self._spaces(), state["spaces"], strict=True):
            for generator, one in zip(generators_of(space), saved, strict=True):
                generator.bit_generator.state = one

    def _spaces(self) -> list[spaces.Space[Any]]:
        found = self._collector._action_space
        return list(found) if isinstance(found, (list, tuple)) else [found]


def _draws(space: spaces.Space[Any]) -> list[Any]:
    return [generator.bit_generator.state for generator in generators_of(space)]


def _taken_apart(value: Any) -> Any:
    """Return a value in which nested batches are plain dicts."""
    if isinstance(value, Batch):
        return {"batch": {key: _taken_apart(item) for key, item in value.items()}}
    return {"value": value}


def _put_together(value: dict[str, Any]) -> Any:
    if "batch" not in value:
        return value["value"]
    batch = Batch()
    for key, item in value["batch"].items():
        batch.__dict__[key] = _put_together(item)
    return batch
