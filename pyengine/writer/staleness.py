"""Notices components that never change: mostly an object that was replaced after `track`.

A model or optimizer whose files are the same in three snapshots in a row while the step advanced is
named once, unless it was declared static.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyengine.catalog.info import SnapshotInfo

_KINDS = ("module", "optimizer")
_SNAPSHOTS = 3


@dataclass(frozen=True, slots=True)
class _Seen:
    """A component's checksums, and since which step they have been the same."""

    checksums: tuple[str, ...]
    count: int
    step: int


class StalenessWatch:
    """Remembers what the last snapshots held. Restarted writers begin anew."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._told: set[str] = set()

    def look(self, info: SnapshotInfo, static: tuple[str, ...]) -> list[str]:
        """Take in a committed snapshot; return a warning for each component now found stale."""
        checksums = {record.path: record.xxh3_64 for record in info.files}
        warnings = []
        for component in info.components:
            if component.kind not in _KINDS or component.name in static or not component.files:
                continue
            seen = self._update(
                component.name, tuple(map(checksums.__getitem__, component.files)), info.global_step
            )
            if seen.count >= _SNAPSHOTS and component.name not in self._told:
                self._told.add(component.name)
                warnings.append(
                    f"component {component.name!r} is the same, byte for byte, in {seen.count} "
                    f"snapshots since step {seen.step}: normal before learning starts; else, was "
                    "the object replaced after track()? Declare it static if it is not meant to "
                    "change"
                )
        return warnings

    def _update(self, name: str, checksums: tuple[str, ...], step: int) -> _Seen:
        former = self._seen.get(name)
        if former is None or former.checksums != checksums:
            seen = _Seen(checksums, 1, step)
        elif former.step == step:
            seen = former
        else:
            seen = _Seen(checksums, former.count + 1, former.step)
        self._seen[name] = seen
        return seen
