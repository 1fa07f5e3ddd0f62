"""The table of figures: bar, measured, verdict; on the screen, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figure import Figure, Measured, unit_of
from benchmarks.judgement import Verdict

COLOURS = {
    Verdict.REACHED: "green",
    Verdict.UNJUDGED: "default",
    Verdict.SKIPPED: "yellow",
    Verdict.UNRESOLVED: "yellow",
    Verdict.MISSED: "bold red",
}

HOW = (
    "Medians; ratios of interleaved pairs with their 95 % bootstrap intervals. A bar is reached or "
    "missed where the whole interval is on one side of it; otherwise, and with fewer than six "
    "pairs, it is not resolved."
)

Outcomes = Sequence[tuple[Figure, Measured]]


def print_table(outcomes: Outcomes, host: dict[str, object], console: Console, title: str) -> None:
    """Print one line a finding, and below it where it was measured."""
    table = Table(title=title)
    for heading in ("what", "bar", "measured", "verdict"):
        table.add_column(heading)
    for figure, measured in outcomes:
        for found in measured.findings:
            colour = COLOURS[found.verdict]
            verdict = f"[{colour}]{found.verdict.value}[/]"
            table.add_row(figure.claim, found.bar, found.text, verdict)
    console.print(table)
    console.print(_host_line(host))
    console.print(HOW)


def write_reports(outcomes: Outcomes, host: dict[str, object], directory: Path, title: str) -> None:
    """Write table.md and table.json: every finding, and every contestant's numbers."""
    lines = [f"# {title}", "", _host_line(host), "", HOW, ""]
    lines += _markdown(
        ("what", "bar", "measured", "verdict"),
        (
            (figure.claim, found.bar, found.text, found.verdict.value)
            for figure, measured in outcomes
            for found in measured.findings
        ),
    )
    for figure, measured in outcomes:
        if measured.samples:
            lines += [f"## {figure.name}: {figure.claim}", ""]
            lines += _details(measured)
    (directory / "table.md").write_text("\n".join(lines))
    record = {
        "host": host,
        "figures": {
            figure.name: {
                "claim": figure.claim,
                "findings": [asdict(found) for found in measured.findings],
                "summaries": {name: asdict(s) for name, s in measured.summaries().items()},
                "facts": measured.facts,
            }
            for figure, measured in outcomes
        },
    }
    (directory / "table.json").write_text(json.dumps(record, indent=1) + "\n")


def _details(measured: Measured) -> list[str]:
    rows = []
    for name, summary in measured.summaries().items():
        unit = unit_of(name)
        label = name.removesuffix(unit).rstrip("_") or name
        values = (summary.median, summary.low, summary.high, summary.p99)
        median, low, high, p99 = (_number(value) for value in values)
        rows.append((label, unit, median, f"{low} to {high}", p99, str(summary.count)))
    lines = _markdown(("sample", "unit", "median", "95 % interval", "p99", "count"), rows)
    guarantees = measured.facts.get("guarantees", {})
    return lines + [f"- {name}: {words}" for name, words in guarantees.items()] + [""]


def _markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines] + [""]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _host_line(host: dict[str, object]) -> str:
    packages, rivals = host["packages"], host["rivals"]
    assert isinstance(packages, dict)
    assert isinstance(rivals, dict)
    versions = ", ".join(f"{name} {version}" for name, version in (packages | rivals).items())
    machine = f"{host['cpu']}, {host['cores']} cores, {host['file_system']}"
    return f"{host['measured_at']}, {machine}; {versions}"
