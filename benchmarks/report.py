"""The table of figures: bar, measured, verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.figure import Figure, Measured


def print_table(
    outcomes: Sequence[tuple[Figure, Measured]],
    host: dict[str, object],
    console: Console,
    *,
    quick: bool,
) -> None:
    """Print one line a figure, and below it where it was measured."""
    table = Table(title="Figures" + (" (quick: small data, no result)" if quick else ""))
    for heading in ("what", "bar", "measured", "verdict"):
        table.add_column(heading)
    for figure, measured in outcomes:
        verdict = "[green]reached[/]" if measured.passed else "[bold red]missed[/]"
        table.add_row(figure.claim, figure.bar_text, measured.text, verdict)
    console.print(table)
    packages = host["packages"]
    assert isinstance(packages, dict)
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    console.print(f"{host['cpu']}, {host['cores']} cores, {host['file_system']}; {versions}")
    console.print("medians; ratios of interleaved pairs with their 95 % bootstrap intervals")
