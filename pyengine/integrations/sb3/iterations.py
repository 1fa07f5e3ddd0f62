"""The count of rollouts that on-policy algorithms log by, continued over restarts.

Their learn() counts iterations in a local variable, which begins at nought in every process. While
a resumed run trains, its logs are dumped from here, at the iterations at which an undisturbed run
dumps them, and the library's own calls are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm


class IterationLog:
    """Counts iterations of a run; takes over the model's `dump_logs` once it was resumed."""

    def __init__(self, model: OnPolicyAlgorithm, log_interval: int | None) -> None:
        self.count = 0
        self._model = model
        self._log_interval = log_interval
        self._stock: type[Any] | None = None

    @classmethod
    def of(cls, model: BaseAlgorithm, learn_locals: Mapping[str, Any]) -> IterationLog | None:
        """Return the log of an on-policy model's learn(), None for other algorithms."""
        if not isinstance(model, OnPolicyAlgorithm):
            return None
        return cls(model, learn_locals.get("log_interval"))

    def go_on_from(self, count: int) -> None:
        """Continue the count of an earlier process."""
        self.count = count
        if count and self._stock is None:
            stock = self._stock = type(self._model)
            passing = type(stock.__name__, (stock,), {"dump_logs": _pass_over})
            passing.__module__, passing.__qualname__ = stock.__module__, stock.__qualname__
            self._model.__class__ = passing

    def rollout_ended(self) -> None:
        """Count one iteration; dump the logs where they are due and nobody else does."""
        self.count += 1
        interval = self._log_interval
        if self._stock is not None and interval is not None and self.count % interval == 0:
            self._stock.dump_logs(self._model, self.count)

    def learn_ended(self) -> None:
        """Begin at nought, as the library does in each learn() of several."""
        self.count = 0
        self.release()

    def release(self) -> None:
        """Give the model its own class back."""
        if self._stock is not None:
            self._model.__class__ = self._stock
            self._stock = None


def _pass_over(model: Any, iteration: int = 0) -> None:
    """Stand in for dump_logs: the count behind `iteration` is not the run's."""
