"""The demo's table and picture, from the logs of its arms."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from demo_log import read_events, read_steps
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

NO_VALUE = "—"


@dataclass(frozen=True, slots=True)
class Arm:
    """What one arm left behind. `lives` are its step records, one array per process."""

    lives: tuple[NDArray[np.void], ...]
    events: tuple[dict[str, dict[str, Any]], ...]
    spawned_ns: tuple[int, ...]
    killed_ns: int | None

    @classmethod
    def read(cls, directory: Path, spawned_ns: list[int], killed_ns: int | None) -> Arm:
        lives = range(1, len(spawned_ns) + 1)
        return cls(
            lives=tuple(read_steps(directory / f"steps-{life}.bin") for life in lives),
            events=tuple(read_events(directory / f"events-{life}.jsonl") for life in lives),
            spawned_ns=tuple(spawned_ns),
            killed_ns=killed_ns,
        )

    @property
    def all_steps(self) -> NDArray[np.void]:
        """Every step that was made, the repeated ones included."""
        return np.concatenate(self.lives)

    @property
    def history(self) -> NDArray[np.void]:
        """The steps that count: of the first life those before the resume, then the second's."""
        parts = list(self.lives)
        for index in range(1, len(parts)):
            resumed = self.events[index]["restored"]["next_step"]
            parts[index - 1] = parts[index - 1][parts[index - 1]["step"] < resumed]
        return np.concatenate(parts)

    def action_digest(self) -> str:
        history = self.history
        log = history["step"].astype("<i8").tobytes() + history["action"].tobytes()
        return hashlib.sha256(log).hexdigest()

    def digest(self, name: str) -> str:
        return str(self.events[-1]["finished"]["digests"][name])

    def redone_steps(self) -> tuple[int, bool]:
        """Return how many steps the second life made again, and whether all came out the same."""
        first, second = self.lives
        again, before, now = np.intersect1d(first["step"], second["step"], return_indices=True)
        same = all(
            np.array_equal(first[name][before], second[name][now], equal_nan=name == "loss")
            for name in ("action", "reward", "loss")
        )
        return len(again), same

    def resume_seconds(self) -> float:
        """Return seconds from the kill to the first batch of the next life, imports apart."""
        assert self.killed_ns is not None
        events = self.events[1]
        imports = events["imported"]["at_ns"] - self.spawned_ns[1]
        return float(events["first_batch"]["at_ns"] - self.killed_ns - imports) / 1e9

    def stalls_ms(self) -> NDArray[np.float64]:
        steps = self.all_steps
        return np.asarray(steps["tick_ns"][steps["started"]] / 1e6)

    def step_ms(self, *, saving: bool, learning: bool) -> NDArray[np.float64]:
        """Return the durations of steps that did not start a save, by what else they did."""
        steps = self.all_steps
        chosen = (steps["saving"] == saving) & ~steps["started"]
        chosen &= ~np.isnan(steps["loss"]) == learning
        return np.asarray(steps["step_ns"][chosen] / 1e6)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that table and picture need."""

    never_killed: Arm
    killed: Arm
    pickled: Arm
    killed_at: int
    seed: int
    row_bytes: int

    @property
    def is_identical(self) -> bool:
        return all(a == b for _, a, b in self.digests())

    def digests(self) -> list[tuple[str, str, str]]:
        a, b = self.never_killed, self.killed
        pairs = [
            ("parameters", a.digest("parameters"), b.digest("parameters")),
            ("Adam moments", a.digest("moments"), b.digest("moments")),
            ("valid rows", a.digest("rows"), b.digest("rows")),
            ("action log", a.action_digest(), b.action_digest()),
        ]
        return [(f"SHA-256: {name}", one, other) for name, one, other in pairs]


def print_report(outcome: Outcome, console: Console) -> None:
    """Print the table and the verdict."""
    table = Table(title=f"Pong, killed after step {outcome.killed_at} (seed {outcome.seed})")
    table.add_column("")
    table.add_column("A: never killed")
    table.add_column("B: kill -9, resumed")
    table.add_column("C: torch.save, pickle\n(no fsync, no checksum)")
    for name, one, other in outcome.digests():
        verdict = "= A" if one == other else "[bold red]differs[/]"
        table.add_row(name, one[:16], f"{other[:16]} {verdict}", NO_VALUE)
    table.add_section()
    for name, values in _figures(outcome):
        table.add_row(name, *values)
    console.print(table)
    if outcome.is_identical:
        console.print("[bold green]B continued bit for bit: every digest equals A's.[/]")
    else:
        console.print("[bold red]B differs from A.[/]")


def _figures(outcome: Outcome) -> list[tuple[str, list[str]]]:
    a, b, c = arms = outcome.never_killed, outcome.killed, outcome.pickled
    resumed = [f"{arm.resume_seconds():.2f}" for arm in (b, c)]
    restored = [f"{arm.events[1]['restored']['seconds']:.2f}" for arm in (b, c)]
    return [
        ("saves", [str(int(arm.all_steps["started"].sum())) for arm in arms]),
        ("stall per save, ms: median / p99 / max", [_stalls(arm) for arm in arms]),
        ("longest add, ms", [f"{arm.all_steps['add_ns'].max() / 1e6:.1f}" for arm in arms]),
        ("step without a save, ms: play / learn", [_steps(arm, False) for arm in arms]),
        ("step beside a save, ms: play / learn",
         [_steps(a, True), _steps(b, True), "stands still"]),
        ("written / new, MB", [_written(a, outcome), NO_VALUE, _written(c, outcome)]),
        ("kill to first batch, s, imports apart", [NO_VALUE, *resumed]),
        ("of that, restore(), s", [NO_VALUE, *restored]),
        ("steps made again", [NO_VALUE, _redone(b), _redone(c)]),
    ]  # fmt: skip


def _stalls(arm: Arm) -> str:
    stalls = arm.stalls_ms()
    return " / ".join(f"{value:.1f}" for value in (*np.percentile(stalls, (50, 99)), stalls.max()))


def _steps(arm: Arm, saving: bool) -> str:
    return " / ".join(_median(arm.step_ms(saving=saving, learning=kind)) for kind in (False, True))


def _median(values: NDArray[np.float64]) -> str:
    return f"{np.median(values):.2f}" if len(values) else NO_VALUE


def _written(arm: Arm, outcome: Outcome) -> str:
    """Bytes handed to write(), against the rows and the learner states that were new."""
    last = [life.get("finished") or life["saving"] for life in arm.events]
    written = sum(event["written"] for event in last)
    steps, state = arm.all_steps, arm.events[-1]["finished"]["state_bytes"]
    new = len(steps) * outcome.row_bytes + int(steps["started"].sum()) * state
    return f"{written / 1e6:,.0f} / {new / 1e6:,.0f}"


def _redone(arm: Arm) -> str:
    count, same = arm.redone_steps()
    return f"{count}, {'all the same' if same else 'NOT the same'}"


def draw(outcome: Outcome, path: Path) -> None:
    """Write the picture: step times with snapshots and kill marked; losses of A and B."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (top, middle, bottom) = pyplot.subplots(3, 1, figsize=(11, 10), sharex=True)
    _draw_step_times(top, outcome.killed, outcome.killed_at, "B: pyengine")
    _draw_step_times(middle, outcome.pickled, outcome.killed_at, "C: torch.save + pickle")
    middle.set_ylim(top.get_ylim()[0], None)
    for arm, style, label in (
        (outcome.never_killed, {"color": "#4477aa", "linewidth": 3}, "A: never killed"),
        (outcome.killed, {"color": "#ee6677", "linewidth": 1, "linestyle": "--"}, "B: killed"),
    ):
        steps = arm.history[~np.isnan(arm.history["loss"])]
        bottom.plot(steps["step"], steps["loss"], label=label, **style)
    bottom.axvline(outcome.killed_at, color="black", linewidth=1)
    bottom.set(xlabel="environment step", ylabel="loss of each update")
    bottom.set_yscale("log")
    bottom.legend(loc="upper left")
    figure.suptitle("A SIGKILLed Atari run continues bit for bit")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


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
