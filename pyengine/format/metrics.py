"""Metrics in JSON: numbers by name, those that JSON has no number for as text."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pyengine.format.document import Fields


def metrics_to_json(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """Return metrics as JSON values: numbers, or "nan", "inf", "-inf"."""
    return {
        name: value if math.isfinite(value) else repr(float(value))
        for name, value in metrics.items()
    }


def read_metrics(fields: Fields) -> dict[str, float]:
    """Return the metrics of an object that holds them under `metrics`; DamageError."""
    metrics = {}
    for name, value in fields.mapping("metrics").items():
        if isinstance(value, bool) or not (
            isinstance(value, (int, float)) or value in ("nan", "inf", "-inf")
        ):
            fields.refuse(f"metrics.{name}", "a number", value)
        try:
            metrics[name] = float(value)
        except OverflowError:
            fields.refuse(f"metrics.{name}", "a number", value)
    return metrics
