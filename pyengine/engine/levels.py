"""The level of a snapshot as it is taken, and of a run that goes on from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyengine.engine.report import ComponentReport
from pyengine.engine.runtime import differences
from pyengine.format.levels import EXACT, PARTIAL, STATE_COMPLETE, WEIGHTS, Level, LevelName

if TYPE_CHECKING:
    from pyengine.catalog.info import SnapshotInfo


def level_of(declared: Level | None, excluded: Mapping[str, str], harmless: Iterable[str]) -> Level:
    """Return the level of what is saved: as declared, or state-complete, and partial where
    something was left out that is not harmless."""
    level = declared or Level(STATE_COMPLETE, reasons=("nobody has declared it exact",))
    missing = [f"{name}: {why}" for name, why in excluded.items() if name not in harmless]
    return level.lowered(PARTIAL, *missing) if missing else level


def level_at_resume(
    info: SnapshotInfo,
    reports: Iterable[ComponentReport],
    lowering: Iterable[str],
    here: Mapping[str, Any],
    *,
    harmless: Iterable[str] = (),
    is_weights: bool = False,
) -> Level:
    """Return the level of a run that goes on from `info`: the snapshot's, lowered by name.

    By what runs otherwise here than then, by `lowering` (lines about rows and generators), and by
    components that are not what they were, but for those that are `harmless`.
    """
    if is_weights:
        return Level(WEIGHTS, reasons=("weights=True: nothing else was put back",))
    level = info.level
    lines = [*differences(info.versions, info.runtime, here), *lowering]
    if lines:
        level = level.lowered(STATE_COMPLETE, *lines)
    missing = [*_missing(reports, set(harmless))]
    return level.lowered(PARTIAL, *missing) if missing else level


def _missing(reports: Iterable[ComponentReport], harmless: set[str]) -> Iterator[str]:
    for report in reports:
        if report.found not in ("restored", "excluded") or (
            report.found == "excluded" and report.name not in harmless
        ):
            note = f" ({report.note})" if report.note else ""
            yield f"{report.name}: {report.found}{note}"


def check_level(name: LevelName) -> LevelName:
    """Return the level; those that a script may declare."""
    from pyengine.engine.settings import check_choice

    check_choice("level", name, (EXACT, STATE_COMPLETE, PARTIAL))
    return name
