"""What a figure is, and the one list of them.

A figure is a module of benchmarks.figures with `FIGURE` and `measure(setting) -> Measured`. It has
a directory of its own that is removed afterwards. One of OWN runs in a process of its own, one of
RACES asks processes of the run's pool.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.contest import Pool
from benchmarks.host import available_memory_bytes
from benchmarks.judgement import Finding, Verdict
from benchmarks.statistics import Summary, summarize

OWN = (
    "append_stall",
    "state_stall",
    "overlap",
    "increment",
    "cold_restore",
    "private_memory",
    "writer_rate",
    "full_speed",
    "scale",
    "larger_than_memory",
)
"""Against the hardware alone."""

RACES = (
    "sample_vectors",
    "sample_stacks",
    "prioritized",
    "add_one",
    "extend",
    "replay_stall",
    "model_stall",
    "first_batch",
    "overhead_vectors",
    "overhead_frames",
    "overhead_model",
)
"""Against the other libraries, and the hardware beside them."""

NAMES = (*OWN, *RACES)


@dataclass(frozen=True, slots=True)
class Figure:
    """Name and claim of a figure."""

    name: str
    claim: str


@dataclass(frozen=True, slots=True)
class Setting:
    """How to measure: `pairs` interleaved repetitions; `quick` asks for small data.

    `pool` has the contestants' processes.
    """

    directory: Path
    pairs: int
    quick: bool
    pool: Pool = field(default_factory=Pool)

    @property
    def turn_seconds(self) -> float:
        """How long a turn that repeats a call goes on."""
        return 0.04 if self.quick else 0.2

    def part(self, name: str) -> Setting:
        """Return this setting in a directory of its own, for one part of a figure."""
        directory = self.directory / name
        directory.mkdir()
        return replace(self, directory=directory)

    def free_disk_bytes(self) -> int:
        return shutil.disk_usage(self.directory).free

    def need_disk(self, size: float) -> None:
        """Raise NotEnough unless `size` bytes, and a fifth more, are free below the directory."""
        _need("disk", 1.2 * size, self.free_disk_bytes())

    def need_memory(self, size: float) -> None:
        """Raise NotEnough unless `size` bytes, and 2 GB for the rest, can be taken."""
        _need("memory", size + 2e9, available_memory_bytes())


def _need(what: str, size: float, free: float) -> None:
    if free < size:
        raise NotEnough(f"{size / 1e9:.1f} GB of {what} are needed, {free / 1e9:.1f} are free")


class NotEnough(RuntimeError):
    """Memory or disk do not suffice: the figure is skipped, and says so."""


@dataclass(frozen=True, slots=True)
class Curves:
    """One log-log panel: by name, points (size, median, ends of its 95 % interval)."""

    size: str
    unit: str
    points: dict[str, list[tuple[float, float, float, float]]]


@dataclass(frozen=True, slots=True)
class Course:
    """What one run did over time: values, and the seconds at which they held."""

    seconds: list[float]
    values: list[float]


@dataclass(frozen=True, slots=True)
class Measured:
    """What came out.

    `findings` hold each bar with what was measured as a person reads it; `samples` holds every raw
    sample by name, with the unit as the last part of the name; `facts` are plain values that belong
    to them; `curves` are medians over a size, drawn instead of the samples; `courses`, named as
    samples are, are drawn beside them.
    """

    findings: list[Finding]
    samples: dict[str, list[float]]
    facts: dict[str, Any] = field(default_factory=dict)
    curves: list[Curves] = field(default_factory=list)
    courses: dict[str, Course] = field(default_factory=dict)

    @classmethod
    def skipped(cls, why: str) -> Measured:
        return cls([Finding("", why, Verdict.SKIPPED)], {})

    @property
    def missed(self) -> bool:
        return any(finding.verdict is Verdict.MISSED for finding in self.findings)

    @property
    def text(self) -> str:
        return "; ".join(f"{found.text} [{found.verdict.value}]" for found in self.findings)

    def summaries(self) -> dict[str, Summary]:
        return {name: summarize(values) for name, values in self.samples.items() if values}

    def to_json(self) -> dict[str, Any]:
        summaries = {name: asdict(summary) for name, summary in self.summaries().items()}
        return {**asdict(self), "summaries": summaries}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Measured:
        findings = [
            Finding(found["bar"], found["text"], Verdict(found["verdict"]))
            for found in record["findings"]
        ]
        curves = [Curves(**curve) for curve in record["curves"]]
        courses = {name: Course(**course) for name, course in record["courses"].items()}
        return cls(findings, record["samples"], record["facts"], curves, courses)


def load_figure(name: str) -> ModuleType:
    """Return the module of a figure."""
    return import_module(f"benchmarks.figures.{name}")


def unit_of(name: str) -> str:
    """Return the unit in a sample's name: its last part, or "what_per_s"."""
    head, _, last = name.rpartition("_")
    if head.endswith("_per"):
        return f"{head.removesuffix('_per').rpartition('_')[2]}_per_{last}"
    return last
