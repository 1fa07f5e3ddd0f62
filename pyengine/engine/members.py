"""Populations: one member's saved state into another's live objects.

Members are names with a common beginning: "member3/policy", "member3/optimizer". What is read,
verified, decoded and compared before the first live object changes is the same as in a restore.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass

from pyengine.capture.build import build_component
from pyengine.capture.component import Component, Decoded, Phase
from pyengine.catalog.commit import hold_snapshot
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.snapshot_files import read_files
from pyengine.engine.comparison import check_kind
from pyengine.engine.report import ComponentReport, table
from pyengine.engine.tracked import Tracked
from pyengine.errors import ComponentMismatchError, ConfigError, StateMismatchError
from pyengine.format.manifest import ComponentRecord

RING = "ring"


@dataclass(frozen=True, slots=True)
class MemberReport:
    """What `restore_member` put where: the components of `into`, each with what became of it.

    `notes` are differences worth knowing. Printed, it is a table.
    """

    snapshot: SnapshotInfo
    source: str
    into: str
    components: tuple[ComponentReport, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.source} of {self.snapshot.name} into {self.into}",
                *table(self.components),
                *(f"note: {note}" for note in self.notes),
            ]
        )


def restore_member(
    tracked: Tracked,
    info: SnapshotInfo,
    source: str,
    into: str,
    only: Collection[str] | None,
    applying: Callable[[bool], None],
) -> MemberReport:
    """Put the state of `source` in a snapshot into what is tracked of `into`.

    `only` names components within a member. `applying` is told as in `restore_snapshot`. Raises
    ComponentMismatchError, StateMismatchError, DamageError, FormatVersionError, FileNotFoundError
    (pruned meanwhile), OSError: nothing live has changed then.
    """
    saved = _saved(info, source)
    live = {
        name.removeprefix(f"{into}/"): name
        for name in tracked.components
        if name.startswith(f"{into}/")
    }
    wanted = _wanted(tracked, info, saved, live, source, into, only)
    found: list[tuple[Component, Decoded]] = []
    reports: list[ComponentReport] = []
    notes: list[str] = []
    with ExitStack() as held:
        lock = hold_snapshot(info.path)
        if lock is not None:
            held.enter_context(lock)
        for name in wanted:
            record, target = saved[name], live[name]
            # Under the name of the source: it is part of what its files hold.
            component = build_component(record.name, tracked.object(target))
            files = read_files(info, record.files)
            try:
                check_kind(record.name, component.kind, record)
                decoded = component.decode(files)
                notes += component.check(decoded)
            except StateMismatchError as error:
                raise StateMismatchError(
                    f"{record.name!r} of {info.name} does not fit {target!r}: {error}",
                    component=target,
                    expected=error.expected,
                    got=error.got,
                ) from error
            found.append((component, decoded))
            size = sum(len(data) for data in files.values())
            reports.append(ComponentReport(target, record.kind, "restored", size))
    found.sort(key=lambda one: one[0].phase)
    applying(True)
    for component, decoded in found:
        if component.phase is not Phase.RNG:
            component.apply(decoded)
    for component, decoded in found:
        if component.phase is Phase.RNG:
            component.apply(decoded)
        component.apply_late(decoded)
    applying(False)
    for name in tracked.rings:
        if name.startswith(f"{into}/"):
            note = "rows stay the member's own"
            reports.append(ComponentReport(name, RING, "skipped", note=note))
    return MemberReport(info, source, into, tuple(reports), tuple(notes))


def _saved(info: SnapshotInfo, source: str) -> dict[str, ComponentRecord]:
    return {
        record.name.removeprefix(f"{source}/"): record
        for record in info.components
        if record.name.startswith(f"{source}/") and record.status == "saved" and record.kind != RING
    }


def _wanted(
    tracked: Tracked,
    info: SnapshotInfo,
    saved: dict[str, ComponentRecord],
    live: dict[str, str],
    source: str,
    into: str,
    only: Collection[str] | None,
) -> list[str]:
    """Return the names within a member that are put back; both sides must have them."""
    if not live:
        groups = sorted({name.partition("/")[0] for name in tracked.components if "/" in name})
        raise ConfigError(
            f"nothing is tracked below {into!r}; members here: {', '.join(groups) or 'none'}",
            field="into",
            expected=groups,
            got=into,
        )
    left_out = {
        name.removeprefix(f"{into}/") for name in tracked.excluded if name.startswith(f"{into}/")
    }
    there, here = set(saved) - left_out, set(live)
    if only is not None:
        there, here = there & set(only), here & set(only)
        there |= set(only) - here  # what neither side has is missing on both
        here |= set(only) - set(saved)
    not_saved = tuple(sorted(f"{source}/{name}" for name in here - set(saved)))
    not_tracked = tuple(sorted(f"{into}/{name}" for name in there - set(live)))
    if not_saved or not_tracked:
        parts = []
        if not_saved:
            parts.append(f"{info.name} holds no {', '.join(not_saved)}")
        if not_tracked:
            parts.append(f"not tracked: {', '.join(not_tracked)}")
        raise ComponentMismatchError(
            f"{source} into {into}: {'; '.join(parts)}. Name what both have by "
            f"only={sorted(set(saved) & set(live))}",
            not_tracked=not_tracked,
            not_saved=not_saved,
        )
    return sorted(here & there)
