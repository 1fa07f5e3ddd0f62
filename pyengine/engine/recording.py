"""What an engine keeps with a run beside its state (evaluations, notes), and tells of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyengine.engine import settings
from pyengine.engine.evaluations import Evaluations
from pyengine.engine.lifetime import Lifetime
from pyengine.engine.notes import Notes
from pyengine.engine.scalars import Scalars

if TYPE_CHECKING:
    from pyengine.format.evaluations import EvaluationRecord


class Recording(Lifetime):
    """The part of SnapshotEngine that keeps records."""

    _evaluations: Evaluations
    _notes: Notes
    _scalars: Scalars

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
    def notes(self) -> Notes:
        """What a script wants to find again with its run, as plain JSON values by name.

        Every later snapshot holds them, and a restore brings those of its snapshot back; what this
        start's script has said itself wins. Assign to change one:

            engine.notes["wandb"] = wandb.init(id=engine.notes.get("wandb"), resume="allow").id

        ConfigError for what a manifest cannot hold: more than 1 MiB, or no JSON.
        """
        self._live()
        return self._notes

    def log_scalars(self, target: Any, *, prefix: str = "pyengine/") -> None:
        """Log figures of the snapshots to `target`, at their steps, from now on.

        A writer with `add_scalar(tag, value, step)`, as TensorBoard's SummaryWriter is, or a
        function of these three; None ends it. Logged once a snapshot is durable, in the next call
        of the engine: `stall_seconds`, `persist_seconds`, `bytes_written` (by the writer since the
        one before) and `new_bytes`; `skipped_snapshots` whenever one is left out. An exception of
        `target` is logged once and changes nothing. ConfigError for another target.
        """
        self._live()
        self._scalars.send_to(target, settings.check_text("prefix", prefix))

    @property
    def skipped(self) -> int:
        """How many snapshots were left out because both staging slots were in use."""
        self._live()
        return self._taker.skipped
