"""Evaluation records: what a policy was worth at some step, kept with the run's state.

They lie in a snapshot's meta.json under `evaluations`, oldest first; the manifest says how many
there are. Bounded, so that they never weigh on a tick: at most EVALUATIONS_MAX of them and
EVALUATIONS_MAX_BYTES of JSON in all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pyengine.errors import DamageError
from pyengine.format.document import Fields, parse_json
from pyengine.format.metrics import metrics_to_json, read_metrics

EVALUATIONS_MAX = 10_000
"""Most records that a snapshot holds."""

EVALUATIONS_MAX_BYTES = 1024 * 1024
"""Most bytes of all records together, as JSON."""

METRICS_MAX = 64
"""Most metrics of one record."""

METRIC_NAME_MAX = 100
"""Most characters of a metric's name."""


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """One evaluation: numbers by name, the step they belong to, and when it was recorded (ISO 8601,
    UTC)."""

    step: int
    metrics: dict[str, float]
    recorded_at: str

    def to_json(self) -> str:
        """Return the record as meta.json holds it."""
        return json.dumps(
            {
                "step": self.step,
                "recorded_at": self.recorded_at,
                "metrics": metrics_to_json(self.metrics),
            },
            separators=(",", ":"),
            allow_nan=False,
        )


def join_records(texts: Sequence[str]) -> str:
    """Return the JSON list of records that are JSON already."""
    return f"[{','.join(texts)}]"


def read_evaluations(meta: bytes, path: str, *, expected: int) -> tuple[EvaluationRecord, ...]:
    """Return the records in a meta.json, of which the manifest says that there are `expected`.

    DamageError: they are not what they should be; `path` is for messages.
    """
    try:
        document = parse_json(meta)  # its state may be nested deeper than documents of ours
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{path} is not valid JSON: {error}", path=path) from error
    records = Fields(document, path).records("evaluations", limit=EVALUATIONS_MAX)
    found = tuple(_read(fields) for fields in records)
    if len(found) != expected:
        raise DamageError(
            f"{path}: {len(found)} evaluation records, the manifest says {expected}",
            path=path,
            expected=expected,
            got=len(found),
        )
    return found


def _read(fields: Fields) -> EvaluationRecord:
    return EvaluationRecord(
        step=fields.integer("step"),
        metrics=read_metrics(fields),
        recorded_at=fields.text("recorded_at", limit=64),
    )
