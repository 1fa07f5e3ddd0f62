"""Snapshots of live objects in memory: the files a writer would write, and a whole restore."""

from __future__ import annotations

import mmap

from pyengine.capture.build import build_component
from pyengine.capture.component import Component
from pyengine.capture.copiers.cpu import CpuCopier
from pyengine.capture.load import load_component
from pyengine.capture.slot import StagingSlot
from pyengine.capture.staging import StagingLayout


def as_components(objects):
    return [
        value if isinstance(value, Component) else build_component(name, value)
        for name, value in objects.items()
    ]


def files_of(plan, memory):
    """Return what a writer would write from a filled slot."""
    files = {}
    for file in plan.files:
        pieces = [
            piece
            if isinstance(piece, bytes)
            else memory[piece.offset : piece.offset + piece.length]
            for piece in file.pieces
        ]
        files[file.path] = bytearray(b"".join(pieces))
    return files


class Snapshot:
    """Files of tracked objects at one instant."""

    def __init__(self, objects, layout=None, meta=None):
        self.components = as_components(objects)
        captured = [component.capture() for component in self.components]
        self.plan = (layout or StagingLayout()).plan(captured, meta or {})
        memory = mmap.mmap(-1, self.plan.required_bytes)
        with StagingSlot(memory, CpuCopier()) as slot:
            slot.fill(self.plan)
        self.files = files_of(self.plan, memory)

    def check(self, objects):
        """Decode and compare everything; return the components in order, with their values."""
        components = sorted(as_components(objects), key=lambda component: component.phase)
        decoded = [component.decode(self.files) for component in components]
        notes = [note for c, d in zip(components, decoded, strict=True) for note in c.check(d)]
        return list(zip(components, decoded, strict=True)), notes

    def restore(self, objects):
        """Put everything back; return the notes."""
        pairs, notes = self.check(objects)
        for component, decoded in pairs:
            component.apply(decoded)
        for component, decoded in pairs:
            component.apply_late(decoded)
        return notes

    def load(self, name):
        kind = next(c.kind for c in self.components if c.name == name)
        return load_component(self.files, name, kind)
