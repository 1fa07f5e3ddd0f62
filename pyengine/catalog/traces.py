"""What tells that a snapshot was committed, once it is gone or has lost its manifest.

    the link `latest`         set by every commit
    a line, a marker          something grew from it, or a restore of it was begun
    the writer's last words   each writer names the newest snapshot when it ends (catalog.endings)
    the directory itself      from its making on an uncommitted one holds `manifest.json.tmp`, which
                              becomes the manifest: whole and with neither, it had one

Only names are told: whoever asks looks what became of them.
"""

from __future__ import annotations

import os

from pyengine.catalog import markers, scan
from pyengine.catalog.endings import last_committed
from pyengine.catalog.lines import read_lines
from pyengine.format import names


def known_committed(run_dir: str, first: int = 0) -> dict[str, str]:
    """Return what proves it, in words, by the name of each snapshot that something outside of it
    proves to have been committed, present or not.

    Nobody asks for snapshots of generations before `first`: a run may have been started thousands
    of times, and the records of those starts need not be read.
    """
    known = dict.fromkeys(markers.marked_snapshots(run_dir), "a restore of it was begun")
    for line in read_lines(run_dir).values():
        if line.parent is not None:
            known[line.parent] = f"line {line.text} grew from it"
    for generation, name in last_committed(run_dir, first).items():
        known[name] = f"the writer of generation {generation} has left it as the newest"
    latest = scan.latest_target(run_dir)
    if latest is not None:
        known[latest] = f"the link `{names.LATEST}` names it"
    return known


def without_manifest(run_dir: str) -> dict[str, str]:
    """Return what proves it, in words, by the name of each snapshot that is in its place, was
    committed, and has no manifest any more."""
    directory = os.path.join(run_dir, names.SNAPSHOTS)
    bare = [
        name
        for name in scan.snapshot_directories(run_dir)
        if not scan.has_manifest(os.path.join(directory, name.text))
    ]
    if not bare:
        return {}
    known = known_committed(run_dir, min(name.generation for name in bare))
    found = {}
    for name in bare:
        path = os.path.join(directory, name.text)
        proof = known.get(name.text)
        if proof is None and _had_manifest(path):
            proof = f"it is whole but for that, and has no {names.MANIFEST_TMP}"
        if proof is not None:
            found[name.text] = proof
    return found


def _had_manifest(path: str) -> bool:
    def has(name: str) -> bool:
        return os.path.lexists(os.path.join(path, name))

    return has(names.META) and not has(names.MANIFEST_TMP)
