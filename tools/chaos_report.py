"""The tables of a chaos run, and the same for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from chaos_verdict import Cost, Verdict
from rich.console import Console
from rich.table import Table

NO_VALUE = "—"


def print_report(verdict: Verdict, console: Console) -> None:
    """Print every fault of the first chaos arm, all faults by kind, the curves, what is broken."""
    first = next(name for name in verdict.outcomes if name.startswith("chaos"))
    console.print(_each(f"{first}: each fault", verdict.costs[first]))
    every = [cost for costs in verdict.costs.values() for cost in costs]
    console.print(_by_kind(every))
    console.print(_arms(verdict))
    for kind in verdict.curves:
        mean, low, high = last_fifth(verdict, kind)
        console.print(f"return over the last fifth, {kind}: {mean:.0f} ({low:.0f} to {high:.0f})")
    skipped = {f"{c.kind}: {c.skipped}" for c in every if c.skipped is not None}
    for text in sorted(skipped):
        console.print(f"left out: {text}")
    for text in verdict.broken:
        console.print(f"BROKEN: {text}", style="red")
    word = "every promise held" if not verdict.broken else f"{len(verdict.broken)} broken"
    console.print(
        f"{sum(c.skipped is None for c in every)} faults in {verdict.seconds:.0f} s: {word}"
    )


def last_fifth(verdict: Verdict, kind: str) -> tuple[float, float, float]:
    """Return mean, lowest and highest return of the seeds over the last fifth of training."""
    curves = verdict.curves[kind]
    means = np.nanmean(curves[:, -curves.shape[1] // 5 :], axis=1)
    return float(means.mean()), float(means.min()), float(means.max())


def _each(title: str, costs: Iterable[Cost]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("at step", "fault", "what was done"):
        table.add_column(heading)
    for heading in ("to step, s", "to snapshot, s", "steps again", "rows lost"):
        table.add_column(heading, justify="right")
    table.add_column("supervisor said, did")
    for cost in costs:
        if cost.skipped is None:
            table.add_row(
                str(cost.step), cost.kind, cost.what, _seconds(cost.to_step),
                _seconds(cost.to_durable), str(cost.steps_again), str(cost.rows_lost), cost.said,
                style="red" if cost.broken else None,
            )  # fmt: skip
    return table


def _by_kind(costs: list[Cost]) -> Table:
    table = Table(title="All arms, by kind: median / largest", title_justify="left")
    table.add_column("fault")
    for heading in ("times", "to step, s", "to snapshot, s", "steps again", "rows lost"):
        table.add_column(heading, justify="right")
    for kind in dict.fromkeys(cost.kind for cost in costs):
        of_kind = [c for c in costs if c.kind == kind and c.skipped is None]
        if of_kind:
            table.add_row(
                kind, str(len(of_kind)),
                _spread([c.to_step for c in of_kind], "{:.2f}"),
                _spread([c.to_durable for c in of_kind], "{:.2f}"),
                _spread([c.steps_again for c in of_kind], "{:.0f}"),
                _spread([c.rows_lost for c in of_kind], "{:.0f}"),
            )  # fmt: skip
    return table


def _arms(verdict: Verdict) -> Table:
    table = Table(title="Arms", title_justify="left")
    table.add_column("arm")
    for heading in ("faults", "restarts", "seconds", "actions are the quiet arm's"):
        table.add_column(heading, justify="right")
    for name, outcome in verdict.outcomes.items():
        same = NO_VALUE
        if name in verdict.differs_at:
            at = verdict.differs_at[name]
            same = "all" if at is None else f"before step {at}"
        restarts = str(outcome.summary.get("restarts", NO_VALUE))
        count = sum(struck.skipped is None for struck in outcome.struck)
        table.add_row(name, str(count), restarts, f"{outcome.seconds:.0f}", same)
    return table


def _seconds(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.2f}"


def _spread(values: list[Any], form: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NO_VALUE
    return f"{form.format(np.median(known))} / {form.format(max(known))}"


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Return everything that the tables tell as plain values."""
    arms = {}
    for name, outcome in verdict.outcomes.items():
        arms[name] = {
            "seed": outcome.plan.seed,
            "replay": outcome.plan.replay,
            "steps": outcome.plan.steps,
            "seconds": round(outcome.seconds, 3),
            "status": outcome.status,
            "restarts": outcome.summary.get("restarts"),
            "deaths": outcome.summary.get("faults"),
            "differs_at": verdict.differs_at.get(name),
            "faults": [dataclasses.asdict(cost) for cost in verdict.costs[name]],
        }
    return {
        "seed": verdict.seed,
        "seconds": round(verdict.seconds, 3),
        "broken": list(verdict.broken),
        "last_fifth": {
            kind: dict(zip(("mean", "low", "high"), last_fifth(verdict, kind), strict=True))
            for kind in verdict.curves
        },
        "arms": arms,
    }
