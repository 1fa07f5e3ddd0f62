"""The demo's picture: step times with saves and kills marked, and losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from demo_results import Arm, Comparison


def draw(loop: Comparison, sb3: Comparison | None, path: Path) -> None:
    """Write the picture: a column for the loop of one's own, one for Stable-Baselines3."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    count = 1 if sb3 is None else 2
    figure, axes = pyplot.subplots(
        3, count, figsize=(11 if count == 1 else 18, 10), sharex="col", squeeze=False
    )
    titles = ("B: pyengine", "C: torch.save + pickle", "A: never killed", "B: killed")
    _draw_column(axes[:, 0], loop, titles, None)
    if sb3 is not None:
        titles = ("E: SB3 with SnapshotCallback", "F: SB3's own save and load",
                  "D: never killed", "E: killed")  # fmt: skip
        _draw_column(axes[:, 1], sb3, titles, "F: killed")
    figure.suptitle("A SIGKILLed Atari run continues bit for bit")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_column(
    axes: Any, outcome: Comparison, titles: tuple[str, ...], others_loss: str | None
) -> None:
    top, middle, bottom = axes
    _draw_step_times(top, outcome.killed, outcome.killed_at, titles[0])
    _draw_step_times(middle, outcome.others_way, outcome.killed_at, titles[1])
    middle.set_ylim(top.get_ylim()[0], None)
    lines = [
        (outcome.never_killed, {"color": "#4477aa", "linewidth": 3}, titles[2]),
        (outcome.killed, {"color": "#ee6677", "linewidth": 1, "linestyle": "--"}, titles[3]),
    ]
    if others_loss is not None:
        lines.insert(1, (outcome.others_way, {"color": "#bbbbbb", "linewidth": 1}, others_loss))
    for arm, style, label in lines:
        steps = arm.history[~np.isnan(arm.history["loss"])]
        bottom.plot(steps["step"], steps["loss"], label=label, **style)
    bottom.axvline(outcome.killed_at, color="black", linewidth=1)
    bottom.set(xlabel="environment step", ylabel="loss of each update")
    bottom.set_yscale("log")
    bottom.legend(loc="upper left")


def _draw_step_times(axes: Any, arm: Arm, killed_at: int, title: str) -> None:
    steps = arm.all_steps
    learning = ~np.isnan(steps["loss"])
    saves = steps["started"]
    for chosen, color, label in (
        (~learning & ~saves, "#bbbbbb", "play"),
        (learning & ~saves, "#4477aa", "learn"),
        (saves, "#ee6677", "starts a save"),
    ):
        axes.scatter(
            steps["step"][chosen], steps["step_ns"][chosen] / 1e6,
            s=14 if label == "starts a save" else 2, color=color, label=label,
            zorder=3 if label == "starts a save" else 2, linewidths=0,
        )  # fmt: skip
    for step in steps["step"][saves]:
        axes.axvline(step, color="#ee6677", linewidth=0.3, alpha=0.5, zorder=1)
    axes.axvline(killed_at, color="black", linewidth=1, label="kill -9")
    axes.set_yscale("log")
    axes.set(ylabel="step time, ms", title=title)
    axes.legend(loc="upper left", ncols=4, fontsize="small")
