"""How a run goes on from a snapshot: four levels, what one holds under, and why it is no higher.

exact           bit for bit as if nothing had happened
state-complete  every piece of state is there; what draws on something outside may go otherwise
partial         something that training changes is not saved
weights         modules and tensors alone: for evaluation, not to go on from
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pyengine.format.document import Fields

LevelName = Literal["exact", "state-complete", "partial", "weights"]

EXACT: LevelName = "exact"
STATE_COMPLETE: LevelName = "state-complete"
PARTIAL: LevelName = "partial"
WEIGHTS: LevelName = "weights"
LEVELS: tuple[LevelName, ...] = (EXACT, STATE_COMPLETE, PARTIAL, WEIGHTS)
"""From the highest to the lowest."""

WEIGHT_KINDS = frozenset({"module", "tensor"})
"""Kinds of components that a snapshot of weights holds."""

_REASONS_MAX = 1000
REASON_LENGTH = 4096
"""Characters of a reason or condition, at most."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level's name, the condition under which it holds (None: none), and reasons why it is no
    higher."""

    name: LevelName
    condition: str | None = None
    reasons: tuple[str, ...] = ()

    def lowered(self, to: LevelName, *reasons: str) -> Level:
        """Return this level, or `to` where that is lower, with more reasons."""
        name = max(self.name, to, key=LEVELS.index)
        cut = [reason[:REASON_LENGTH] for reason in reasons]
        return Level(name, self.condition, (*self.reasons, *cut)[:_REASONS_MAX])

    def to_json(self) -> dict[str, Any]:
        """Return the level as JSON values."""
        return {"name": self.name, "condition": self.condition, "reasons": list(self.reasons)}

    def __str__(self) -> str:
        condition = f" ({self.condition})" if self.condition else ""
        return f"{self.name}{condition}"


UNDECLARED = Level(STATE_COMPLETE)
"""Where nobody has said anything."""


def read_level(fields: Fields) -> Level:
    """Return the level of an object that holds one under `level`; DamageError."""
    found = fields.child("level")
    name = found.text("name", limit=100)
    if name not in LEVELS:
        found.refuse("name", f"one of {', '.join(LEVELS)}", name)
    reasons = found.array("reasons", limit=_REASONS_MAX)
    for reason in reasons:
        if not isinstance(reason, str) or len(reason) > REASON_LENGTH:
            found.refuse("reasons", f"texts of at most {REASON_LENGTH} characters", reason)
    return Level(name, found.optional_text("condition"), tuple(reasons))
