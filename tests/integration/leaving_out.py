"""Restores that leave a component as the script made it: a run that needs it shows that."""

from __future__ import annotations

import functools
from typing import Any

from pyengine import SnapshotEngine
from pyengine.engine import restore


def leave_out_component(name: str, patch: Any) -> None:
    """Make restores leave a whole component as the script made it; `patch` is a MonkeyPatch."""
    if name == "replay":
        put = SnapshotEngine.restore
        patch.setattr(SnapshotEngine, "restore", functools.partialmethod(put, replay="skip"))
        return
    components = restore._Work.components

    def without(work: Any, tracked: Any) -> list[Any]:
        return [one for one in components(work, tracked) if one.name != name]

    patch.setattr(restore._Work, "components", without)
