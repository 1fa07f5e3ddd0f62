"""A model of a disk, fed with a journal of all calls; what a cut may leave of it: disk_states.

Durable is what an fsync of the file (its bytes) or of the directory (its names) has covered. Of
everything else any part may be there or not:

    bytes     each write absent, there, zeroed, or torn at a border of 512 bytes; the file's size
              grown all the same, or not
    names     each create, rename, link, unlink, mkdir, rmdir absent or there, in any combination

A rename within a directory is one change: the file has the old name or the new one, as on ext4,
xfs and btrfs. One between directories is two changes, each made durable by the fsync of its own
directory; by itself a name does not leave the one before it is in the other. Their journals keep
more order than this model does, so that every state they leave is among those it gives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


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


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One change of a directory: `gone` disappears, `come` appears and names `node`."""

    number: int
    gone: str | None = None
    come: str | None = None
    node: Node | None = None
    after: tuple[Directory, Change] | None = None
    """The change of another directory that comes before this one, where no fsync says otherwise."""

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


class Disk:
    """The files below one directory, fed with the notes of a journal one after the other."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.top = Directory()
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
        return not any(node.pending for node in self.reachable() if not isinstance(node, Link))

    def reachable(self) -> Iterator[Node]:
        """Yield every node that is there or may be after a cut."""
        waiting: list[Node] = [self.top]
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

    def _place(self, path: str) -> tuple[Directory, str]:
        relative = os.path.relpath(path, self._root)
        assert not relative.startswith(".."), f"{path} is not below {self._root}"
        *parents, name = relative.split("/")
        directory = self.top
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
        after: tuple[Directory, Change] | None = None,
    ) -> None:
        change = Change(self._number, gone, come, node, after)
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
            self._change(directory, gone=name, after=(into, into.pending[-1]))

    def _file(self, note: dict[str, Any]) -> File:
        node = self._inodes[tuple(note["inode"])]
        assert isinstance(node, File)
        return node

    def _write(self, note: dict[str, Any]) -> None:
        file, offset, data = self._file(note), note["offset"], note["data"]
        lay(file.content, offset, data)
        file.pending.append((offset, data))
        file.blob = None

    def _truncate(self, note: dict[str, Any]) -> None:
        # The engine only ever makes a file longer so; shorter ones would need a write of their own.
        file = self._file(note)
        assert note["size"] >= len(file.content)
        lay(file.content, note["size"], b"")
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
            self.top.durable = dict(self.top.names)
            self.top.pending.clear()


def lay(content: bytearray, offset: int, data: bytes) -> None:
    """Put bytes into a file's content; what lies before them is zeros."""
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
