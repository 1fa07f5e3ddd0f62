"""Manifests of older schema versions, brought up to date one version at a time.

`STEPS[v]` turns a document of version v into one of version v + 1. It gets a document whose
checksum was verified and may change it in place; a step is never edited once it was released.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyengine.errors import FormatVersionError

SCHEMA_VERSION = 3
"""Version of the manifest that this pyengine writes."""

Step = Callable[[dict[str, Any]], dict[str, Any]]


def _from_version_1(document: dict[str, Any]) -> dict[str, Any]:
    """Version 2 counts the evaluation records of meta.json; before it there were none."""
    return {**document, "evaluations": 0}


def _from_version_2(document: dict[str, Any]) -> dict[str, Any]:
    """Version 3 has levels, types, harmless exclusions, milestones and what a run ran on.

    What was left out before may have mattered, and nothing was ever declared exact.
    """
    components = document.get("components")
    left_out = True
    if isinstance(components, list):  # else the reader refuses it
        found = [one for one in components if isinstance(one, dict)]
        left_out = any(one.get("status") == "excluded" for one in found)
        components = [
            {**one, "type": None, "harmless": False} if isinstance(one, dict) else one
            for one in components
        ]
    level = "partial" if left_out else "state-complete"
    return {
        **document,
        "components": components,
        "level": {"name": level, "condition": None, "reasons": ["no level was declared then"]},
        "runtime": {},
        "milestone": False,
    }


STEPS: Mapping[int, Step] = {1: _from_version_1, 2: _from_version_2}


def migrate(
    document: dict[str, Any],
    path: str,
    *,
    steps: Mapping[int, Step] = STEPS,
    target: int = SCHEMA_VERSION,
) -> dict[str, Any]:
    """Return the document in version `target`.

    FormatVersionError: it was written by a newer pyengine, or by one too old to be read.
    """
    version = document.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise FormatVersionError(f"{path} does not name its schema version", path=path, version=-1)
    if version > target:
        raise FormatVersionError(
            f"{path} has schema version {version}; this pyengine reads up to {target}: "
            "it was written by a newer pyengine, which can read it",
            path=path,
            version=version,
        )
    for older in range(version, target):
        step = steps.get(older)
        if step is None:
            raise FormatVersionError(
                f"{path} has schema version {version}, which this pyengine no longer reads",
                path=path,
                version=version,
            )
        document = {**step(document), "schema_version": older + 1}
    return document
