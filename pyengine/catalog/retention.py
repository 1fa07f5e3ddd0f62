"""Which snapshots may go. Pure: looks at values, touches nothing.

Only committed ancestors of the newest snapshot may go. Of the newest and its ancestors the last N
stay, the one with the highest value of a metric where one is named, and whatever else happens: the
newest that was verified by a restore, and everything that is no ancestor, among it the newest of
every line that was left behind. Those that a reader has locked are known, and spared, only where
the others are moved away (catalog.commit). A line that was continued from its newest snapshot was
not left behind: a run that is killed and resumed again and again keeps N snapshots, not one for
every time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.lines import Line
from pyengine.format import names


def plan(
    snapshots: Sequence[SnapshotInfo],
    *,
    keep_last: int,
    keep_best: str | None = None,
    lines: Mapping[str, Line],
    verified: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the names of the snapshots to remove, oldest first.

    `snapshots` are the committed ones in any order, `lines` by id (16 hex): an ancestor whose line
    is not recorded counts as none. `keep_last` is at least 1, `keep_best` the name of a metric.
    """
    ordered = sorted(snapshots, key=lambda info: info.order)
    if not ordered:
        return ()
    history = _history(ordered[-1], ordered, lines)
    kept = {info.name for info in history[-max(1, keep_last) :]}
    kept.update([info.name for info in ordered if info.name in verified][-1:])
    kept.update(_best(history, keep_best))
    return tuple(info.name for info in history if info.name not in kept)


def _best(history: Sequence[SnapshotInfo], metric: str | None) -> list[str]:
    """Return the name of the snapshot with the highest value, the oldest of equals; NaN is none."""
    if metric is None:
        return []
    values = [(info.metrics.get(metric, math.nan), info) for info in history]
    values = [(value, info) for value, info in values if not math.isnan(value)]
    return [max(values, key=lambda item: item[0])[1].name] if values else []


def _history(
    newest: SnapshotInfo, ordered: Sequence[SnapshotInfo], lines: Mapping[str, Line]
) -> list[SnapshotInfo]:
    """Return the newest snapshot and its ancestors, oldest first."""
    reached: dict[str, tuple[int, int]] = {}
    line_text: str | None = newest.line
    bound = newest.order
    while line_text is not None and line_text not in reached:
        reached[line_text] = bound
        line = lines.get(line_text)
        parent = names.parse_snapshot_name(line.parent) if line and line.parent else None
        if line is None or parent is None:
            break
        line_text = line.parent_line
        bound = (parent.generation, parent.sequence)
    return [info for info in ordered if info.line in reached and info.order <= reached[info.line]]
