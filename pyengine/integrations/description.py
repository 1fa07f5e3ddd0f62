"""What a run was made with, in its manifests, and whether a script's objects are still that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyengine
from pyengine.errors import ModelMismatchError


@dataclass(frozen=True, slots=True)
class Description:
    """How an adapter describes a run: plain JSON values under one key of the manifest's notes.

    `words` says what each value is called, `whose` and `what` name the script's side ("the script's
    model", "the model"), `maker` who writes such a description ("this callback").
    """

    note: str
    words: Mapping[str, str]
    whose: str
    what: str
    maker: str

    def whole(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return `found` with None for each value that it does not have."""
        return {**dict.fromkeys(self.words), **found}

    def check(self, run_dir: str, found: Mapping[str, Any]) -> None:
        """Raise ModelMismatchError that names both sides; reads the run, touches nothing.

        A value that the run's own description lacks was not written yet by the version that made
        it.
        """
        saved = newest(run_dir)
        if saved is None:
            return
        expected = saved.notes.get(self.note)
        if not isinstance(expected, dict):
            raise ModelMismatchError(
                f"{run_dir} was not made by {self.maker}; take another run directory",
                what="run", saved=None, found=dict(found),
            )  # fmt: skip
        for key, text in self.words.items():
            if key in expected and expected[key] != found.get(key):
                raise ModelMismatchError(
                    f"{run_dir}: the run has {text} {expected[key]}, {self.whose} "
                    f"{found.get(key)}; make {self.what} as the run was made, or take another run "
                    "directory",
                    what=key, saved=expected[key], found=found.get(key),
                )  # fmt: skip


def newest(run_dir: str) -> pyengine.SnapshotInfo | None:
    """Return the newest snapshot of a run; None where there is none."""
    snapshots = saved_snapshots(run_dir)
    return snapshots[-1] if snapshots else None


def saved_snapshots(run_dir: str) -> tuple[pyengine.SnapshotInfo, ...]:
    """Return a run's snapshots, oldest first; none where there is no run as yet."""
    if not os.path.isdir(run_dir) or not os.listdir(run_dir):
        return ()
    return tuple(pyengine.open_run(run_dir).snapshots)
