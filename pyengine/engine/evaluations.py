"""The evaluation records of a run: kept by the engine, saved with every snapshot.

A record belongs to a step of the run. A restore goes back to a snapshot's step: records of later
steps tell of a future that is made anew, and are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyengine.engine.describe import check_metrics
from pyengine.errors import ConfigError
from pyengine.format.evaluations import (
    EVALUATIONS_MAX,
    EVALUATIONS_MAX_BYTES,
    METRIC_NAME_MAX,
    METRICS_MAX,
    EvaluationRecord,
    join_records,
)
from pyengine.format.manifest import utc_timestamp


class Evaluations:
    """All records so far, oldest first. One thread at a time may change them; whoever reads sees
    them before or after a change."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[EvaluationRecord, ...], tuple[str, ...]] = ((), ())
        self._size_bytes = 0

    @property
    def records(self) -> tuple[EvaluationRecord, ...]:
        """The records."""
        return self._kept[0]

    def for_snapshot(self) -> tuple[int, str]:
        """Return how many there are and their JSON, of one instant."""
        records, texts = self._kept
        return len(records), join_records(texts)

    def add(self, step: int, metrics: dict[str, object]) -> EvaluationRecord:
        """Add a record; ConfigError where it has no metrics, or would be one too many."""
        if not 1 <= len(metrics) <= METRICS_MAX:
            raise ConfigError(
                f"an evaluation has 1 to {METRICS_MAX} metrics, got {len(metrics)}: "
                "record_evaluation(step, mean_return=12.5)",
                field="metrics",
            )
        for name in metrics:
            if len(name) > METRIC_NAME_MAX:
                raise ConfigError(
                    f"metric {name[:40]!r}...: its name has more than {METRIC_NAME_MAX} characters",
                    field="metrics",
                )
        record = EvaluationRecord(step, check_metrics(metrics), utc_timestamp())
        text = record.to_json()
        records, texts = self._kept
        if len(records) == EVALUATIONS_MAX or self._size_bytes + len(text) > EVALUATIONS_MAX_BYTES:
            raise ConfigError(
                f"{len(records)} evaluations of {self._size_bytes} bytes are kept already, of at "
                f"most {EVALUATIONS_MAX} and {EVALUATIONS_MAX_BYTES}: this one was not recorded; "
                "record every n-th, or fewer metrics of each",
                field="evaluations",
            )
        self._kept = ((*records, record), (*texts, text))
        self._size_bytes += len(text)
        return record

    def replace(self, records: Iterable[EvaluationRecord]) -> int:
        """Take over what a snapshot held; return how many records it did not know."""
        kept = tuple(records)
        texts = tuple(record.to_json() for record in kept)
        unknown = len(set(self._kept[1]) - set(texts))
        self._size_bytes = sum(map(len, texts))
        self._kept = (kept, texts)
        return unknown
