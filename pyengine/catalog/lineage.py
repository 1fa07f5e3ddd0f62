"""The tree of lines: which histories of rows go on from a snapshot, and by which lines.

A line grew from a snapshot of the line before it, as its record says; where somebody has removed
the record, the manifest of the line's first snapshot does. Snapshots in quarantine are asked too,
and those that are gone are not needed: a record names the line of its parent. So every line that
grew from a snapshot is found, through whatever came in between.

What is named in the pool and has no place in the tree is handed out by itself: its files may prove
where it belongs (catalog.later_rows).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyengine.catalog import quarantine, scan
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.lines import Line, read_lines
from pyengine.catalog.retention import Origin, told_by_snapshots
from pyengine.errors import PyengineError, RestoreError
from pyengine.format import names


@dataclass(frozen=True, slots=True)
class Stretch:
    """A line as part of a history: by ring, the row of each lane at which it goes on.

    `start_rows` None: nobody knows, and its own files alone are its history. `parent` is the
    snapshot that it grew from. `has_snapshot`: one was committed under it.
    """

    line: int
    start_rows: Mapping[str, Sequence[int]] | None
    parent: str | None
    has_snapshot: bool


History = tuple[Stretch, ...]
"""Lines one after the other, each up to where the next one goes on."""


class Lineage:
    """What is known of the lines around one snapshot; reads records and manifests once.

    `snapshots` are all others whose manifests can be read, those in quarantine too, oldest first;
    `unreadable` says of which records of lines nothing is known, and why.
    """

    def __init__(self, run_dir: str, info: SnapshotInfo) -> None:
        self.unreadable: list[RestoreError | OSError] = []
        self._info = info
        self._lines = read_lines(run_dir, self.unreadable.append)
        self.snapshots = [one for one in _all_snapshots(run_dir) if one.path != info.path]
        everything = sorted([info, *self.snapshots], key=lambda one: one.order)
        self._origins = {
            text: Origin(line.parent, line.parent_line) for text, line in self._lines.items()
        }
        self._orders = {text: line.order for text, line in self._lines.items()}
        for first, origin in told_by_snapshots(everything, self._lines):
            self._origins[first.line] = origin
            self._orders[first.line] = (first.generation, 0)
        self._parents = {origin.parent_line for origin in self._origins.values()}
        self._parents |= {one.line for one in self.snapshots}

    def histories(self) -> list[History]:
        """Return each history that goes on from the snapshot, by its last line: the newest first,
        that of the snapshot's own line at the end."""
        own = Stretch(int(self._info.line, 16), {}, None, True)
        paths = {text: self._path(text) for text in self._origins}
        grown = [text for text, (root, path) in paths.items() if path and root == self._info.line]
        grown.sort(key=lambda text: self._orders[text], reverse=True)
        found = [(own, *map(self._stretch, paths[text][1])) for text in grown]
        return [*found, (own,)]

    def unplaced(self, in_pool: Collection[str]) -> list[History]:
        """Return what those lines in the pool continue that nothing connects with the others: a
        history for each line of which nobody knows what it grew from."""
        known = self._ancestors()
        longest: dict[str, tuple[tuple[int, int], list[str]]] = {}
        for text in {*in_pool, *(one.line for one in self.snapshots)}:
            root, path = self._path(text)
            if root is not None and root != self._info.line and root not in known:
                candidate = (self._orders.get(text, (0, 0)), [root, *path])
                longest[root] = max(longest.get(root, candidate), candidate)
        return [tuple(map(self._stretch, path)) for _, path in longest.values()]

    def grown_lines(self) -> set[str]:
        """Return the lines (16 hex) that grew from the snapshot, its own first one left out."""
        return {names.line_text(one.line) for line in self.histories() for one in line[1:]}

    def _stretch(self, text: str) -> Stretch:
        line: Line | None = self._lines.get(text)
        start_rows = None if line is None else line.start_rows
        origin = self._origins.get(text)
        parent = None if origin is None else origin.parent
        return Stretch(int(text, 16), start_rows, parent, text in self._parents)

    def _path(self, text: str) -> tuple[str | None, list[str]]:
        """Return the lines from a root, which is left out, down to `text`: the snapshot's own line,
        or one of unknown origin. None: it began anew, or grew from an older snapshot."""
        path: list[str] = []
        while text != self._info.line and text in self._origins and text not in path:
            path.append(text)
            origin = self._origins[text]
            if origin.parent_line is None or not self._is_after(origin):
                return None, []
            text = origin.parent_line
        return (None, []) if text in path else (text, path[::-1])

    def _is_after(self, origin: Origin) -> bool:
        """Whether the parent is the snapshot or a later one, where it is of the same line."""
        parent = names.parse_snapshot_name(origin.parent or "")
        if origin.parent_line != self._info.line:
            return True
        return parent is not None and (parent.generation, parent.sequence) >= self._info.order

    def _ancestors(self) -> set[str]:
        found: set[str] = set()
        text: str | None = self._info.line
        while text is not None and text not in found:
            found.add(text)
            origin = self._origins.get(text)
            text = origin.parent_line if origin is not None else None
        return found


def snapshot_directories(run_dir: str) -> list[str]:
    """Return the directories of all snapshots, good or bad, those in quarantine last."""
    moved = os.path.join(run_dir, names.QUARANTINE)
    snapshots = os.path.join(run_dir, names.SNAPSHOTS)
    found = [os.path.join(snapshots, name.text) for name in scan.committed_names(run_dir)]
    return found + [os.path.join(moved, name) for name in quarantine.snapshot_names(run_dir)]


def _all_snapshots(run_dir: str) -> list[SnapshotInfo]:
    found = []
    for path in snapshot_directories(run_dir):
        try:
            found.append(SnapshotInfo.of(path, scan.read_manifest(path)))
        except (PyengineError, OSError):
            continue  # its files speak for themselves
    return sorted(found, key=lambda info: info.order)
