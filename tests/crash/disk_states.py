"""What a power cut may leave of a disk: any state that the model allows, by kind and chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import xxhash

from crash.disk import Blob, Change, Directory, Disk, File, Link, lay

SECTOR_BYTES = 512

CORNERS = ("absent", "present", "names", "zeroed")
"""Nothing that was not fsynced is there; all of it is; all names but no bytes; all names, and zeros
in place of the bytes."""

SAMPLED = ("order", "subset")
"""Names in the order of a journal, cut somewhere, or any of them; bytes by chance."""

Entry = tuple[str, str, Any]
"""(path below the root, "directory" | "file" | "link", None | Blob | target), parents first."""


def state_of(disk: Disk, kind: str, rng: random.Random) -> list[Entry]:
    """Return one state that a cut at this moment may leave."""
    is_there = _in_order(_names_kept(disk, kind, rng))
    return list(_walk("", disk.top, is_there, kind, rng))


def _in_order(is_there: Callable[[Change], bool]) -> Callable[[Change], bool]:
    """Return the same, but for changes of which what comes before is not there."""
    decided: dict[Change, bool] = {}

    def keep(change: Change) -> bool:
        if change not in decided:
            decided[change] = is_there(change)
            if change.after is not None and change.after[1] in change.after[0].pending:
                decided[change] &= keep(change.after[1])
        return decided[change]

    return keep


def _names_kept(disk: Disk, kind: str, rng: random.Random) -> Callable[[Change], bool]:
    if kind == "absent":
        return lambda change: False
    if kind in ("present", "names", "zeroed"):
        return lambda change: True
    if kind == "order":
        directories = [node for node in disk.reachable() if isinstance(node, Directory)]
        numbers = sorted(change.number for node in directories for change in node.pending)
        last = rng.choice([0, *numbers])
        return lambda change: change.number <= last
    share = rng.choice((0.2, 0.5, 0.8))
    return lambda change: rng.random() < share


def _walk(
    path: str,
    directory: Directory,
    is_there: Callable[[Change], bool],
    kind: str,
    rng: random.Random,
) -> Iterator[Entry]:
    names = dict(directory.durable)
    for change in directory.pending:
        if is_there(change):
            change.apply(names)
    for name, node in sorted(names.items()):
        where = f"{path}{name}"
        if isinstance(node, Directory):
            yield where, "directory", None
            yield from _walk(f"{where}/", node, is_there, kind, rng)
        elif isinstance(node, Link):
            yield where, "link", node.target
        else:
            yield where, "file", _bytes_kept(node, kind, rng)


def _blob(file: File, data: bytes, *, lasting: bool = False) -> Blob:
    return Blob(data, f"{file.number}-{xxhash.xxh3_64_hexdigest(data)}", lasting)


def _bytes_kept(file: File, kind: str, rng: random.Random) -> Blob:
    if not file.pending or kind == "present":
        if file.blob is None:
            file.blob = _blob(file, bytes(file.content), lasting=not file.pending)
        return file.blob
    if kind in ("absent", "names"):
        return _blob(file, file.durable)
    if kind == "zeroed":
        zeroed = file.durable + bytes(len(file.content) - len(file.durable))
        return _blob(file, zeroed)
    kept = bytearray(file.durable)
    for offset, data in file.pending:
        _keep_some(kept, offset, data, rng)
    return _blob(file, bytes(kept))


def _keep_some(kept: bytearray, offset: int, data: bytes, rng: random.Random) -> None:
    fate = rng.choice(("absent", "there", "zeroed", "torn"))
    if fate == "there":
        lay(kept, offset, data)
    elif fate == "zeroed":
        lay(kept, offset, bytes(len(data)))
    elif fate == "torn":
        if rng.random() < 0.5:
            lay(kept, offset + len(data), b"")  # the size came through, whatever the sectors did
        # Sectors reach the disk in any order: each is there or not.
        border = offset - offset % SECTOR_BYTES
        for begin in range(border, offset + len(data), SECTOR_BYTES):
            if rng.random() < 0.5:
                low, high = max(begin, offset), min(begin + SECTOR_BYTES, offset + len(data))
                lay(kept, low, data[low - offset : high - offset])
