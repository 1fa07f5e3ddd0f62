"""Which snapshots, and which records of lines, may go. Pure: looks at values, touches nothing.

Only committed ancestors of the newest snapshot may go, and snapshots of weights of their lines. Of
the newest and its ancestors the last N stay, without counting milestones and those of weights, of
which the last N stay too; the one with the best value of a metric where one is named; and whatever
else happens: milestones, the newest that was verified by a restore, and everything else that is no
ancestor, among it the newest of every line that was left behind. Those that a reader has locked are
known, and spared, only where the others are moved away (catalog.commit). A line that was continued
from its newest snapshot was not left behind: a run that is killed and resumed again and again keeps
N snapshots, not one for every time.

A line's record says what the line grew from. Where somebody has removed it the manifest of the
line's first snapshot does, which stays for that reason as long as anything older does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.lines import Line
from pyengine.format import names


def plan(
    snapshots: Sequence[SnapshotInfo],
    *,
    keep_last: int,
    keep_best: str | None = None,
    keep_best_mode: str = "max",
    lines: Mapping[str, Line],
    verified: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the names of the snapshots to remove, oldest first.

    `snapshots` are the committed ones in any order, `lines` by id (16 hex): what a line grew from
    is unknown where neither its record nor its first snapshot tells. `keep_last` is at least 1,
    `keep_best` the name of a metric, of which the highest value counts, or with `keep_best_mode`
    "min" the lowest.
    """
    ordered = sorted(snapshots, key=lambda info: info.order)
    if not ordered:
        return ()
    origins = {text: Origin(line.parent, line.parent_line) for text, line in lines.items()}
    told = told_by_snapshots(ordered, origins)
    history = _history(ordered[-1], ordered, {**origins, **{i.line: o for i, o in told}})
    newest = max(1, keep_last)
    kept = {info.name for info in _counted(history)[-newest:]}
    light = _light(history, ordered)
    kept.update(info.name for info in light[-newest:])
    kept.update(info.name for info in history if info.milestone)
    kept.update([info.name for info in ordered if info.name in verified][-1:])
    kept.update(_best(history, keep_best, keep_best_mode))
    witnesses = {info.name for info, _ in told}
    for index, info in enumerate(history):
        if info.name in witnesses and any(older.name in kept for older in history[:index]):
            kept.add(info.name)
    going = {info.name for info in (*history, *light)} - kept
    return tuple(info.name for info in ordered if info.name in going)


def plan_lines(
    lines: Mapping[str, Line], *, current: str, used: Collection[str], present: Collection[str]
) -> tuple[str, ...]:
    """Return the ids of the lines whose records nothing needs, as a restore that failed leaves one.

    `current` is the line that is being committed to: none that was opened later goes. `used` are
    the lines of snapshots and of files of the pool; they and all between them and a later line
    stay. Of the others the newest that grew from each of the snapshots `present` stays: it proves
    that this was committed. None goes where `current` has no record.
    """
    now = lines.get(current)
    if now is None:
        return ()
    kept = {text for text, line in lines.items() if text in used or line.order >= now.order}
    for text in tuple(kept):
        path: list[str] = []
        while text in lines and text not in path:
            path.append(text)
            if text in used:
                kept.update(path)
            text = lines[text].parent_line or ""
    newest = {line.parent: text for text, line in sorted(lines.items(), key=lambda i: i[1].order)}
    kept.update(text for parent, text in newest.items() if parent in present)
    return tuple(text for text in lines if text not in kept)


def _counted(history: Sequence[SnapshotInfo]) -> list[SnapshotInfo]:
    """Return the snapshots of which the last N stay: those to go on from, milestones apart."""
    return [info for info in history if not (info.milestone or info.is_weights_only)]


def _light(history: Sequence[SnapshotInfo], ordered: Sequence[SnapshotInfo]) -> list[SnapshotInfo]:
    """Return the snapshots of weights, milestones apart, of the lines of a history. A restore goes
    on from before such a one, so that it need be nobody's ancestor."""
    lines = {info.line for info in history}
    return [
        info
        for info in ordered
        if info.is_weights_only and not info.milestone and info.line in lines
    ]


def _best(history: Sequence[SnapshotInfo], metric: str | None, mode: str) -> list[str]:
    """Return the name of the snapshot with the best value, the oldest of equals; NaN is none."""
    if metric is None:
        return []
    values = [(info.metrics.get(metric, math.nan), info) for info in history]
    values = [(value, info) for value, info in values if not math.isnan(value)]
    sign = -1 if mode == "min" else 1
    return [max(values, key=lambda item: sign * item[0])[1].name] if values else []


class Origin(NamedTuple):
    """The snapshot and its line that a line grew from; None both: it began anew."""

    parent: str | None
    parent_line: str | None


def told_by_snapshots(
    ordered: Sequence[SnapshotInfo], recorded: Collection[str]
) -> list[tuple[SnapshotInfo, Origin]]:
    """Return the first snapshot of each line that is not on record, and what it says of the line:
    its parent is there, and of another line."""
    by_name = {info.name: info for info in ordered}
    firsts: dict[str, SnapshotInfo] = {}
    for info in ordered:
        firsts.setdefault(info.line, info)
    told = []
    for line, info in firsts.items():
        parent = by_name.get(info.parent or "")
        if line not in recorded and parent is not None and parent.line != line:
            told.append((info, Origin(parent.name, parent.line)))
    return told


def _history(
    newest: SnapshotInfo, ordered: Sequence[SnapshotInfo], origins: Mapping[str, Origin]
) -> list[SnapshotInfo]:
    """Return the newest snapshot and its ancestors, oldest first."""
    reached: dict[str, tuple[int, int]] = {}
    line_text: str | None = newest.line
    bound = newest.order
    while line_text is not None and line_text not in reached:
        reached[line_text] = bound
        origin = origins.get(line_text)
        parent = names.parse_snapshot_name(origin.parent or "") if origin else None
        if origin is None or parent is None:
            break
        line_text = origin.parent_line
        bound = (parent.generation, parent.sequence)
    return [info for info in ordered if info.line in reached and info.order <= reached[info.line]]
