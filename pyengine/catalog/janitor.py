"""What dead generations left behind: unfinished directories and temporaries. Never a snapshot.

At a claim the lower generations are dead: their owner's lock is free and their writer was waited
for. Where one lives on that was taken over, its files stay until a claim after its end. Moved to
trash under the commit lock, deleted after it. A directory that lost its manifest after it was
committed (catalog.traces) is not unfinished: it goes into quarantine, loudly.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from pyengine.catalog import pool, quarantine, scan, traces
from pyengine.catalog.commit_lock import CommitLock
from pyengine.catalog.generation import generation_path
from pyengine.events import logger
from pyengine.format import names
from pyengine.fs import durable
from pyengine.fs.locks import is_locked


@dataclass(frozen=True, slots=True)
class Leftover:
    """One name that may go once its generation is dead; trash may go at any time."""

    path: str
    kind: Literal["trash", "temporary", "unfinished"]
    generation: int


def sweep(held: CommitLock) -> list[str]:
    """Move to trash what generations before `held.generation` did not finish; old trash too.

    Returns the paths to delete with `commit.empty_trash`. Directories without a manifest go only
    where their name is that of a snapshot; files that are not ours stay.
    """
    _rescue(held)
    trash = []
    is_dead = functools.cache(functools.partial(_is_dead, held.run_dir))

    def is_swept(generation: int) -> bool:
        return generation < held.generation and is_dead(generation)

    _take_names_back(held, is_swept)
    for directory in scan.named_directories(held.run_dir):
        found = _sweep_directory(held, directory, is_swept)
        if found:
            durable.fsync_directory(directory)
        trash += found
    return trash


def sweep_predecessor(held: CommitLock) -> list[str]:
    """Move to trash the temporaries of a dead writer of the generation itself.

    For a writer that takes over, before it writes anything: looks only where writers write, in
    `snapshots/` and the pool, since the trainer of the generation is alive.
    """
    pools = os.path.join(held.run_dir, names.SEGMENTS)
    trash = []
    for directory in scan.named_directories(held.run_dir):
        is_pool = os.path.dirname(directory) == pools
        if is_pool or os.path.basename(directory) == names.SNAPSHOTS:
            trash += _sweep_directory(held, directory, lambda g: g == held.generation)
    return trash


def _take_names_back(held: CommitLock, is_swept: Callable[[int], bool]) -> None:
    """Remove what files were called in the pool for a line that was not opened: its restore died
    before the record was in its place. The temporary, which goes after them, names the line."""
    for left in leftovers(os.path.join(held.run_dir, names.LINES)):
        line = names.parse_temporary_line(os.path.basename(left.path))
        if line is not None and is_swept(left.generation):
            pool.remove_line(held, line)


def _rescue(held: CommitLock) -> None:
    """Move to quarantine what was committed once and has no manifest now."""
    snapshots = os.path.join(held.run_dir, names.SNAPSHOTS)
    for name, proof in traces.without_manifest(held.run_dir).items():
        target = quarantine.move_unfinished(held, name, proof)
        logger.error(
            "%s was committed (%s) and has no %s any more: moved to %s",
            os.path.join(snapshots, name),
            proof,
            names.MANIFEST,
            target,
        )


def _is_dead(run_dir: str, generation: int) -> bool:
    path = generation_path(run_dir, generation)
    return not is_locked(path, names.OWNER_BYTE) and not is_locked(path, names.WRITER_BYTE)


def _sweep_directory(
    held: CommitLock, directory: str, is_swept: Callable[[int], bool]
) -> list[str]:
    trash = []
    for left in leftovers(directory):
        if left.kind == "trash":
            trash.append(left.path)
        elif is_swept(left.generation):
            trash.append(held.trash(left.path))
    return trash


def leftovers(directory: str) -> Iterator[Leftover]:
    """Yield what lies in one of the run's directories and is nobody's work any more, provided that
    its generation is dead. Looks only."""
    for entry in _listed(directory):
        path = os.path.join(directory, entry)
        if names.is_trash(entry):
            yield Leftover(path, "trash", names.parse_temporary_generation(entry) or 0)
        elif names.is_temporary(entry):
            yield Leftover(path, "temporary", names.parse_temporary_generation(entry) or 0)
        elif os.path.basename(directory) == names.SNAPSHOTS:
            name = names.parse_snapshot_name(entry)
            is_unfinished = os.path.isdir(path) and not scan.has_manifest(path)
            if name is not None and is_unfinished:
                yield Leftover(path, "unfinished", name.generation)


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
