"""The demo's tables."""

from __future__ import annotations

import numpy as np
from demo_results import Arm, Comparison, arm_digests
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

NO_VALUE = "—"


def print_loop(outcome: Comparison, seed: int, console: Console) -> None:
    """Print what became of the arms A, B and C."""
    a, b, c = outcome.never_killed, outcome.killed, outcome.others_way
    table = _table(
        f"Pong, a loop of one's own, killed after step {outcome.killed_at} (seed {seed})",
        "A: never killed", "B: kill -9, resumed", "C: torch.save, pickle\n(no fsync, no checksum)",
    )  # fmt: skip
    for name, one, other in outcome.digests():
        table.add_row(name, one[:16], _verdict(one, other, "A", alarm=True), NO_VALUE)
    table.add_section()
    arms = (a, b, c)
    table.add_row("saves", *map(_saves, arms))
    table.add_row("stall per save, ms: median / p99 / max", *map(_stalls, arms))
    table.add_row(
        "longest add, ms", *(f"{arm.all_steps['add_ns'].max() / 1e6:.1f}" for arm in arms)
    )
    table.add_row("step without a save, ms: play / learn", *(_steps(arm, False) for arm in arms))
    beside = (_steps(a, True), _steps(b, True), "stands still")
    table.add_row("step beside a save, ms: play / learn", *beside)
    written = [_written(arm, outcome.row_bytes) for arm in (a, c)]
    table.add_row("written / new, MB", written[0], NO_VALUE, written[1])
    resumed = [f"{arm.resume_seconds('first_batch'):.2f}" for arm in (b, c)]
    table.add_row("kill to first batch, s, imports apart", NO_VALUE, *resumed)
    table.add_row(
        "of that, the killed one's writer finishes, s", NO_VALUE, _seconds(b, "claimed"), NO_VALUE
    )
    table.add_row("of that, restore(), s", NO_VALUE, *(_seconds(arm, "restored") for arm in (b, c)))
    table.add_row("steps made again", NO_VALUE, _redone(b), _redone(c))
    console.print(table)
    _print_verdict(outcome, "A", "B", console)


def print_sb3(outcome: Comparison, console: Console) -> None:
    """Print what became of the arms D, E and F."""
    d, e, f = outcome.never_killed, outcome.killed, outcome.others_way
    table = _table(
        f"Pong, Stable-Baselines3's DQN, killed after step {outcome.killed_at}",
        "D: never killed,\nsaves nothing", "E: SnapshotCallback,\nkill -9, resumed",
        "F: its own save and\nload, kill -9, resumed",
    )  # fmt: skip
    for (name, one), (_, other), (_, third) in zip(*map(arm_digests, (d, e, f)), strict=True):
        ours, theirs = _verdict(one, other, "D", alarm=True), _verdict(one, third, "D", alarm=False)
        table.add_row(name, one[:16], ours, theirs)
    differences = [_difference(arm, d) for arm in (e, f)]
    table.add_row("first action that differs from D's", NO_VALUE, *differences)
    table.add_section()
    table.add_row("saves", NO_VALUE, _saves(e), _saves(f))
    table.add_row("stall per save, ms: median / p99 / max", NO_VALUE, _stalls(e), _stalls(f))
    table.add_row("step without a save, ms: play / learn", *(_steps(a, False) for a in (d, e, f)))
    written = [_written(arm, outcome.row_bytes) for arm in (e, f)]
    table.add_row("written / new, MB", NO_VALUE, *written)
    resumed = [f"{arm.resume_seconds('first_update'):.2f}" for arm in (e, f)]
    table.add_row("kill to first update, s, imports apart", NO_VALUE, *resumed)
    table.add_row("steps made again", NO_VALUE, _redone(e), _redone(f))
    console.print(table)
    _print_verdict(outcome, "D", "E", console)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for column in ("", *columns):
        table.add_column(column)
    return table


def _print_verdict(outcome: Comparison, one: str, other: str, console: Console) -> None:
    if outcome.is_identical:
        console.print(f"[bold green]{other} continued bit for bit: every digest equals {one}'s.[/]")
    else:
        console.print(f"[bold red]{other} differs from {one}.[/]")


def _verdict(one: str, other: str, name: str, *, alarm: bool) -> str:
    if one == other:
        return f"{other[:16]} = {name}"
    return f"{other[:16]} [bold red]differs[/]" if alarm else f"{other[:16]} differs"


def _difference(arm: Arm, other: Arm) -> str:
    step = arm.first_difference(other)
    if step is None:
        return f"none of {len(other.history):,}"
    return f"step {step}, {step - arm.resumed_at} after the resume"


def _saves(arm: Arm) -> str:
    return str(int(arm.all_steps["started"].sum()))


def _seconds(arm: Arm, event: str) -> str:
    """Return how long the second life took for something."""
    return f"{arm.events[1][event]['seconds']:.2f}"


def _stalls(arm: Arm) -> str:
    stalls = arm.stalls_ms()
    return " / ".join(f"{value:.1f}" for value in (*np.percentile(stalls, (50, 99)), stalls.max()))


def _steps(arm: Arm, saving: bool) -> str:
    return " / ".join(_median(arm.step_ms(saving=saving, learning=kind)) for kind in (False, True))


def _median(values: NDArray[np.float64]) -> str:
    return f"{np.median(values):.2f}" if len(values) else NO_VALUE


def _written(arm: Arm, row_bytes: int) -> str:
    return f"{arm.written_bytes() / 1e6:,.0f} / {arm.new_bytes(row_bytes) / 1e6:,.0f}"


def _redone(arm: Arm) -> str:
    count, same = arm.redone_steps()
    return f"{count}, {'all the same' if same else 'NOT the same'}"
