"""What is saved beside what is tracked: names, kinds, and what is left out on either side."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pyengine.capture.files import PICKLE
from pyengine.catalog.info import SnapshotInfo
from pyengine.engine.report import ComponentReport
from pyengine.engine.tracked import Tracked
from pyengine.errors import ComponentMismatchError, StateMismatchError
from pyengine.format.levels import WEIGHT_KINDS
from pyengine.format.manifest import ComponentRecord


def check_kind(name: str, kind: str, record: ComponentRecord) -> None:
    """Raise StateMismatchError where a name stands for another kind of object than when saved."""
    if record.kind != kind:
        by_pickle = " (here: as pyengine.Pickled, if you trust the run)"
        raise StateMismatchError(
            f"{name!r} is a {kind} in this script and a {record.kind} in the snapshot: track it "
            "under another name, or restore with the object that it was saved from"
            f"{by_pickle if record.kind == PICKLE else ''}",
            component=name,
            expected=kind,
            got=record.kind,
        )


def compare_names(
    tracked: Tracked,
    info: SnapshotInfo,
    saved: Collection[str],
    allow: tuple[str, ...],
) -> None:
    """Raise ComponentMismatchError where a name is on one side only and was not let through."""
    passed = {*allow, *tracked.excluded}
    not_tracked = tuple(sorted(set(saved) - tracked.names - passed))
    not_saved = tuple(sorted(tracked.names - set(saved) - passed))
    if not not_tracked and not not_saved:
        return
    parts = []
    if not_tracked:
        parts.append(f"saved but not tracked: {', '.join(not_tracked)}")
    if not_saved:
        parts.append(f"tracked but not saved: {', '.join(not_saved)}")
    raise ComponentMismatchError(
        f"{info.name}: {'; '.join(parts)}. Track the same names, or go on without them by "
        f"restore(allow={[*not_tracked, *not_saved]})",
        not_tracked=not_tracked,
        not_saved=not_saved,
    )


def beside_weights(tracked: Tracked) -> dict[str, str]:
    """Return what is tracked and no weights: kinds by name."""
    kinds = {name: one.kind for name, one in tracked.components.items()}
    kinds |= dict.fromkeys(tracked.rings, "ring")
    return {name: kind for name, kind in kinds.items() if kind not in WEIGHT_KINDS}


def absent(
    tracked: Tracked,
    info: SnapshotInfo,
    saved: dict[str, ComponentRecord],
    *,
    is_weights: bool = False,
) -> Iterator[ComponentReport]:
    """Yield a line for everything that is not put back; `is_weights`: on purpose."""
    if is_weights:
        for name, kind in beside_weights(tracked).items():
            note = "weights alone: left as it is"
            yield ComponentReport(name, kind, "skipped", note=note)
    for name, record in saved.items():
        if name in tracked.excluded:
            note = f"here: {tracked.excluded[name]}"
            yield ComponentReport(name, record.kind, "excluded", note=note)
        elif name not in tracked.names:
            yield ComponentReport(name, record.kind, "not tracked", note="left in the snapshot")
    reasons = {record.name: record.reason for record in info.components}
    passed = beside_weights(tracked) if is_weights else ()
    for name in sorted(tracked.names - set(saved) - set(passed)):
        kind = tracked.components[name].kind if name in tracked.components else "ring"
        reason = reasons.get(name)
        note = f"excluded then: {reason}" if reason else "left as it is"
        yield ComponentReport(name, kind, "not saved", note=note)
