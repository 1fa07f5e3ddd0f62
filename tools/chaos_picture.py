"""The picture of a chaos run: curves with and without faults, and how long each fault was felt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chaos_faults import KINDS
from chaos_verdict import Verdict, points_of

COLORS = {"quiet": "#4477aa", "chaos": "#ee6677"}


def draw(verdict: Verdict, path: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(11, 9))
    _draw_curves(top, verdict)
    _draw_recoveries(bottom, verdict)
    figure.suptitle(f"CartPole with and without faults (seed {verdict.seed})")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_curves(axes: Any, verdict: Verdict) -> None:
    for kind, curves in verdict.curves.items():
        outcomes = [o for name, o in verdict.outcomes.items() if name.startswith(kind)]
        at = points_of(outcomes[0].plan.steps)
        mean, spread = curves.mean(axis=0), curves.std(axis=0)
        faults = sum(len(outcome.struck) for outcome in outcomes)
        label = f"{kind}, {len(curves)} seeds, {faults} faults"
        axes.plot(at, mean, color=COLORS[kind], label=label)
        axes.fill_between(at, mean - spread, mean + spread, color=COLORS[kind], alpha=0.2)
    first = next(o for name, o in verdict.outcomes.items() if name.startswith("chaos"))
    for struck in first.struck:
        if struck.skipped is None:
            axes.axvline(struck.step, color="black", linewidth=0.4, alpha=0.4)
    axes.set(xlabel="environment step", ylabel="mean return of 20 episodes, ± one deviation")
    axes.legend(loc="upper left")


def _draw_recoveries(axes: Any, verdict: Verdict) -> None:
    every = [cost for costs in verdict.costs.values() for cost in costs]
    kinds = [kind for kind in KINDS if any(c.kind == kind and c.to_step for c in every)]
    for row, kind in enumerate(kinds):
        for values, marker, color in (
            ([c.to_step for c in every if c.kind == kind and c.to_step], "o", "#4477aa"),
            ([c.to_durable for c in every if c.kind == kind and c.to_durable], "|", "#ee6677"),
        ):
            axes.plot(values, [row] * len(values), marker, color=color, markersize=7)
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_xscale("log")
    axes.set(xlabel="seconds from the fault to the next step (o) and the next durable snapshot (|)")
    axes.invert_yaxis()
