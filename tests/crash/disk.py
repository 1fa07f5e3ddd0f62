"""What a disk may hold after a power cut: a model fed with a journal of all calls.

Durable is what an fsync of the file (its bytes) or of the directory (its names) has covered. Of
everything else any part may be there or not:

    bytes     each write absent, there, zeroed, or torn at a border of 512 bytes; the file's size
              grown all the same, or not
    names     each create, rename, link, unlink, mkdir, rmdir absent or there, in any combination

A rename within a directory is one change: the file has the old name or the new one, as on ext4,
xfs and btrfs. One between directories is two changes, of which either may be there without the
other: each waits for the fsync of its own directory. Their journals keep more order than this model
does, so that every state they leave is among those it gives.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import xxhash

SECTOR_BYTES = 512

CORNERS = ("absent", "present", "names", "zeroed")
"""Nothing that was not fsynced is there; all of it is; all names but no bytes; all names, and zeros
in place of the bytes."""

SAMPLED = ("order", "subset")
"""Names in the order of a journal, cut somewhere, or any of them; bytes by chance."""


@dataclass(eq=False)
class File:
    """A regular file: its bytes, those that are durable, and the writes since."""

    number: int
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    blob: Blob | None = None


@dataclass(eq=False)
class Link:
    """A symbolic link."""

    target: str


@dataclass(eq=False)
class Directory:
    """A directory: its names, those that are durable, and the changes since."""

    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)


Node = File | Link | Directory


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a directory: `gone` disappears, `come` appears and names `node`."""

    number: int
    gone: str | None = None
    come: str | None = None
    node: Node | None = None

    def apply(self, names: dict[str, Node]) -> None:
        if self.gone is not None:
            names.pop(self.gone, None)
        if self.come is not None:
            assert self.node is not None
            names[self.come] = self.node


@dataclass(frozen=True, slots=True)
class Blob:
    """The bytes of a file, and a key that no other file has. `lasting`: more states have them."""

    data: bytes
    key: str
    lasting: bool


Entry = tuple[str, str, Any]
"""(path below the root, "directory" | "file" | "link", None | Blob | target), parents first."""


class Disk:
    """The files below one directory, fed with the notes of a journal one after the other."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._top = Directory()
        self._inodes: dict[tuple[int, int], Node] = {}
        self._number = 0

    def apply(self, note: dict[str, Any]) -> bool:
        """Take in one note; False where it changes nothing that a cut can show."""
        op = note["op"]
        if op == "mark":
            return False
        self._number += 1
        getattr(self, f"_{op}")(note)
        return True

    def is_settled(self) -> bool:
        """Whether nothing is pending."""
        return not any(node.pending for node in self._reachable() if not isinstance(node, Link))

    # --- what the calls do ---------------------------------------------------------------------

    def _place(self, path: str) -> tuple[Directory, str]:
        relative = os.path.relpath(path, self._root)
        assert not relative.startswith(".."), f"{path} is not below {self._root}"
        *parents, name = relative.split("/")
        directory = self._top
        for parent in parents:
            found = directory.names[parent]
            assert isinstance(found, Directory)
            directory = found
        return directory, name

    def _change(
        self,
        directory: Directory,
        gone: str | None = None,
        come: str | None = None,
        node: Node | None = None,
    ) -> None:
        change = Change(self._number, gone, come, node)
        change.apply(directory.names)
        directory.pending.append(change)

    def _add(self, path: str, node: Node, inode: Any = None) -> None:
        directory, name = self._place(path)
        self._change(directory, come=name, node=node)
        if inode is not None:
            self._inodes[tuple(inode)] = node

    def _create(self, note: dict[str, Any]) -> None:
        self._add(note["path"], File(self._number), note["inode"])

    def _mkdir(self, note: dict[str, Any]) -> None:
        self._add(note["path"], Directory(), note["inode"])

    def _symlink(self, note: dict[str, Any]) -> None:
        self._add(note["path"], Link(note["target"]))

    def _link(self, note: dict[str, Any]) -> None:
        directory, name = self._place(note["path"])
        self._add(note["target"], directory.names[name])

    def _unlink(self, note: dict[str, Any]) -> None:
        directory, name = self._place(note["path"])
        self._change(directory, gone=name)

    _rmdir = _unlink

    def _rename(self, note: dict[str, Any]) -> None:
        directory, name = self._place(note["path"])
        into, target = self._place(note["target"])
        node = directory.names[name]
        if into is directory:
            self._change(directory, name, target, node)
        else:
            self._change(into, come=target, node=node)
            self._change(directory, gone=name)

    def _file(self, note: dict[str, Any]) -> File:
        node = self._inodes[tuple(note["inode"])]
        assert isinstance(node, File)
        return node

    def _write(self, note: dict[str, Any]) -> None:
        file, offset, data = self._file(note), note["offset"], note["data"]
        _lay(file.content, offset, data)
        file.pending.append((offset, data))
        file.blob = None

    def _truncate(self, note: dict[str, Any]) -> None:
        # The engine only ever makes a file longer so; shorter ones would need a write of their own.
        file = self._file(note)
        assert note["size"] >= len(file.content)
        _lay(file.content, note["size"], b"")
        file.pending.append((note["size"], b""))
        file.blob = None

    def _sync(self, note: dict[str, Any]) -> None:
        node = self._inodes.get(tuple(note["inode"]))
        if isinstance(node, File):
            node.durable = bytes(node.content)
            node.pending.clear()
            node.blob = None
        elif isinstance(node, Directory):
            node.durable = dict(node.names)
            node.pending.clear()
        else:
            # The directory above the run, in which its name was made durable.
            self._top.durable = dict(self._top.names)
            self._top.pending.clear()

    # --- what a cut may leave ------------------------------------------------------------------

    def state(self, kind: str, rng: random.Random) -> list[Entry]:
        """Return one state that a cut at this moment may leave."""
        is_there = self._names_kept(kind, rng)
        return list(self._walk("", self._top, is_there, kind, rng))

    def _reachable(self) -> Iterator[Node]:
        waiting: list[Node] = [self._top]
        seen = set()
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            if isinstance(node, Directory):
                waiting += node.names.values()
                waiting += node.durable.values()
                waiting += [change.node for change in node.pending if change.node is not None]

    def _names_kept(self, kind: str, rng: random.Random) -> Callable[[Change], bool]:
        if kind == "absent":
            return lambda change: False
        if kind in ("present", "names", "zeroed"):
            return lambda change: True
        if kind == "order":
            directories = [node for node in self._reachable() if isinstance(node, Directory)]
            numbers = sorted(change.number for node in directories for change in node.pending)
            last = rng.choice([0, *numbers])
            return lambda change: change.number <= last
        share = rng.choice((0.2, 0.5, 0.8))
        return lambda change: rng.random() < share

    def _walk(
        self,
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
                yield from self._walk(f"{where}/", node, is_there, kind, rng)
            elif isinstance(node, Link):
                yield where, "link", node.target
            else:
                yield where, "file", _bytes_kept(node, kind, rng)


def _lay(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


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
        _lay(kept, offset, data)
    elif fate == "zeroed":
        _lay(kept, offset, bytes(len(data)))
    elif fate == "torn":
        if rng.random() < 0.5:
            _lay(kept, offset + len(data), b"")  # the size came through, whatever the sectors did
        # Sectors reach the disk in any order: each is there or not.
        border = offset - offset % SECTOR_BYTES
        for begin in range(border, offset + len(data), SECTOR_BYTES):
            if rng.random() < 0.5:
                low, high = max(begin, offset), min(begin + SECTOR_BYTES, offset + len(data))
                _lay(kept, low, data[low - offset : high - offset])
