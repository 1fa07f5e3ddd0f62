"""What a restore found and did, for the program and for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyengine.catalog.info import SnapshotInfo
    from pyengine.format.evaluations import EvaluationRecord
    from pyengine.format.levels import Level

Found = Literal["restored", "skipped", "excluded", "not saved", "not tracked"]


@dataclass(frozen=True, slots=True)
class ComponentReport:
    """What became of one component.

    `bytes` read from its files (for a ring: of the files that it now uses); `rows` come back, None
    for anything but a ring; `note` a line for people.
    """

    name: str
    kind: str
    found: Found
    bytes: int = 0
    rows: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of `restore()`: false on a fresh run, true when a snapshot was put back.

    `next_step` is the step to go on with: the snapshot's step + 1, or 0. `line` is the id of the
    history that begins here (16 hexadecimal digits); `notes` are differences worth knowing, and
    what became of snapshots that were passed over; `evaluations` the records up to that step.
    `level` says how the run goes on: the snapshot's level, lowered by what is not as it was then
    (None on a fresh run).
    Printed, it is a table.
    """

    snapshot: SnapshotInfo | None
    line: str
    components: tuple[ComponentReport, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    run_dir: str = field(default="", repr=False)
    evaluations: tuple[EvaluationRecord, ...] = ()
    level: Level | None = None

    def __bool__(self) -> bool:
        return self.snapshot is not None

    @property
    def global_step(self) -> int | None:
        """The step at which the snapshot was taken; None on a fresh run."""
        return self.snapshot.global_step if self.snapshot is not None else None

    @property
    def next_step(self) -> int:
        """The step to go on with."""
        return self.snapshot.global_step + 1 if self.snapshot is not None else 0

    @property
    def rows(self) -> int:
        """Replay rows that came back, over all rings."""
        return sum(component.rows or 0 for component in self.components)

    def component(self, name: str) -> ComponentReport:
        """Return the line of one component; KeyError where there is none of that name."""
        for component in self.components:
            if component.name == name:
                return component
        raise KeyError(name)

    def __str__(self) -> str:
        if self.snapshot is None:
            return f"{self.run_dir}: no snapshot; a fresh run begins at step 0"
        lines = [
            f"{self.run_dir}: {self.snapshot.name} restored in {self.seconds:.3f} s; "
            f"go on with step {self.next_step}",
            *table(self.components),
            *(f"note: {note}" for note in self.notes),
            *_told(self.level, self.snapshot.level),
        ]
        return "\n".join(lines)


def _told(level: Level | None, saved: Level) -> list[str]:
    if level is None:
        return []
    was = f", {saved.name} when it was saved" if saved.name != level.name else ""
    return [f"level: {level}{was}", *(f"    {reason}" for reason in level.reasons)]


def table(components: tuple[ComponentReport, ...]) -> list[str]:
    """Return a line for each component, and one above them, for people."""
    rows = [("component", "kind", "found", "bytes", "rows", "")]
    for item in components:
        rows_text = "" if item.rows is None else f"{item.rows:,}"
        rows.append((item.name, item.kind, item.found, f"{item.bytes:,}", rows_text, item.note))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[3:5], widths[3:], strict=True)]
        lines.append("  ".join(["", *left, *right, row[5]]).rstrip())
    return lines
