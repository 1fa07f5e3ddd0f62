"""What a figure is, and the one list of them.

A figure is a module of benchmarks.figures with `FIGURE` and `measure(setting) -> Measured`. It runs
in a process of its own, in a directory of its own that is removed afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.statistics import Summary, summarize

NAMES = (
    "append_stall",
    "state_stall",
    "increment",
    "cold_restore",
    "private_memory",
    "writer_rate",
)


@dataclass(frozen=True, slots=True)
class Figure:
    """Name, claim and bar of a figure. `bar_text` is what a person reads."""

    name: str
    claim: str
    bar_text: str


@dataclass(frozen=True, slots=True)
class Setting:
    """How to measure: `pairs` interleaved repetitions; `quick` asks for small data."""

    directory: Path
    pairs: int
    quick: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """What came out.

    `text` is the measured value as a person reads it; `samples` holds every raw sample by name,
    with the unit as the last part of the name; `facts` are plain values that belong to them.
    """

    passed: bool
    text: str
    samples: dict[str, list[float]]
    facts: dict[str, Any] = field(default_factory=dict)

    def summaries(self) -> dict[str, Summary]:
        return {name: summarize(values) for name, values in self.samples.items() if values}

    def to_json(self) -> dict[str, Any]:
        summaries = {name: asdict(summary) for name, summary in self.summaries().items()}
        return {**asdict(self), "summaries": summaries}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Measured:
        names = ("passed", "text", "samples", "facts")
        return cls(**{name: record[name] for name in names})


def load_figure(name: str) -> ModuleType:
    """Return the module of a figure."""
    return import_module(f"benchmarks.figures.{name}")


def format_ratio(ratios: Sequence[float]) -> str:
    """Return "1.10 x (1.05 to 1.16)": median of paired ratios and its interval."""
    summary = summarize(ratios)
    return f"{summary.median:.2f} x ({summary.low:.2f} to {summary.high:.2f})"
