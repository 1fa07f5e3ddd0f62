"""What an engine keeps with a run beside its state: results of evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyengine.engine import settings
from pyengine.engine.evaluations import Evaluations
from pyengine.engine.lifetime import Lifetime

if TYPE_CHECKING:
    from pyengine.format.evaluations import EvaluationRecord


class Recording(Lifetime):
    """The part of SnapshotEngine that keeps records."""

    _evaluations: Evaluations

    def record_evaluation(self, step: int, **metrics: float) -> EvaluationRecord:
        """Keep the result of an evaluation of step `step` with the run: engine.record_evaluation(
        step, mean_return=12.5).

        Every later snapshot holds all records; a restore drops those of steps after its own. Any
        number of seconds after that step, from one thread at a time; blocks for nothing and writes
        nothing by itself. Raises ConfigError for what is no number, without metrics or with more
        than 64, and where 10,000 records or 1 MiB of them are kept already; UnrestoredRunError and
        PoisonedEngineError as `tick` does.
        """
        session = self._live()
        step = settings.check_step(step)
        self._check_restored(session)
        return self._evaluations.add(step, dict(metrics))

    @property
    def evaluations(self) -> tuple[EvaluationRecord, ...]:
        """The evaluation records of the run so far, in the order in which they were made."""
        self._live()
        return self._evaluations.records

    @property
    def skipped(self) -> int:
        """How many snapshots were left out because both staging slots were in use."""
        self._live()
        return self._taker.skipped
