"""Adopt a buffer of Tianshou: its rows move into a ring, and the library notices nothing.

The buffer object stays; its class and its memory change. So nothing has to be said when it is made,
pickles and HDF5 files of it need no pyengine, and every draw is the one that it was.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tianshou.data import ReplayBufferManager

from pyengine.errors import ConfigError, ReplacedObjectError
from pyengine.integrations.tianshou.buffers.classes import (
    KNOWN,
    InRing,
    as_stock,
    lane_class,
    ring_class,
)
from pyengine.integrations.tianshou.buffers.copied import CopiedRows
from pyengine.integrations.tianshou.buffers.layout import Layout, leaves, name_of
from pyengine.integrations.tianshou.buffers.meta import RingMeta
from pyengine.integrations.tianshou.buffers.rows import BufferRows
from pyengine.integrations.tianshou.buffers.state import (
    Cursors,
    Draws,
    Extras,
    LayoutRecord,
    Priorities,
    parts_of,
)

RING = "replay"
LAYOUT = "replay_layout"


class Adoption:
    """What became of a buffer. Made by `adopt`.

    `objects` is for `engine.track(**objects)`, at once; `late_objects` gives what there is to track
    besides once the first rows were added. `notes` are lines for people.
    """

    def __init__(self, buffer: Any, meta: RingMeta | None) -> None:
        self._buffer = buffer
        self._meta = meta
        self.notes: tuple[str, ...] = ()
        self.objects: dict[str, Any] = {"replay_draws": Draws(buffer)}
        if hasattr(buffer, "weight"):
            self.objects["replay_priorities"] = Priorities(buffer)
        if meta is None:
            copied = CopiedRows(buffer)
            self.objects["replay_rows"] = copied
            self.notes = copied.notes
        else:
            self.objects["replay_cursors"] = Cursors(buffer, meta.rows)
            self.objects["replay_extras"] = Extras(meta)

    def late_objects(self) -> dict[str, Any]:
        """Return the ring and its layout by name; nothing before there are rows."""
        if self._meta is None or self._meta.layout is None:
            return {}
        return {RING: self._meta.rows.ring, LAYOUT: LayoutRecord(self._meta.layout)}

    def extras(self) -> list[str]:
        """Return the names of what rows hold besides the fields of the ring."""
        return [] if self._meta is None else [name_of(path) for path in self._meta.extras]

    def lay_out(self, record: dict[str, Any]) -> None:
        """Prepare for the rows of a snapshot: those that the buffer has are left out.

        `record` is what the snapshot has under LAYOUT.
        """
        assert self._meta is not None
        self._meta.rows.close()
        parts = parts_of(self._buffer)
        rows = _rows_for(self._buffer)
        meta = RingMeta.over(rows)
        meta.lay_out(Layout.from_record(record))
        _install(self._buffer, meta)
        for part in parts:
            if hasattr(part, "forget_altered"):
                part.forget_altered()
        self._meta = meta
        self.objects["replay_cursors"] = Cursors(self._buffer, rows)
        self.objects["replay_extras"] = Extras(meta)

    def check(self, buffer: Any) -> None:
        """Raise ReplacedObjectError where the collector has another buffer, or it another memory.

        A snapshot would go on to hold the rows of the former one, silently.
        """
        if buffer is not self._buffer:
            raise ReplacedObjectError(
                "the training collector's buffer was replaced after its rows became part of the "
                "snapshots: fill it before run_training(), or let the snapshot bring the rows back",
                component="replay",
            )
        if self._meta is not None and vars(buffer)["_meta"] is not self._meta:
            raise ReplacedObjectError(
                "the memory of the training collector's buffer was replaced: add rows by add()",
                component="replay",
            )

    def close_open_episodes(self) -> None:
        """End the episodes that the newest rows belong to, after environments were reset.

        No stack, return or next observation joins two episodes from then on: the newest row of
        each lane counts as truncated, unless its episode was over.
        """
        if self._meta is not None:
            self._meta.rows.close_episodes()
        for part in parts_of(self._buffer):
            if isinstance(part, ReplayBufferManager):
                continue
            part._ep_return, part._ep_len = 0.0, 0
            part._ep_start_idx = part._insertion_idx

    def release(self) -> None:
        """Give the buffer its stock class and arrays back, and free the ring. Idempotent.

        The arrays take the memory that stock's take. Close the engine before.
        """
        buffer = self._buffer
        if not isinstance(buffer, InRing):
            return
        assert self._meta is not None
        stock = as_stock(buffer)
        buffer.__class__ = type(stock)
        buffer.__dict__.clear()
        buffer.__dict__.update(stock.__dict__)
        self._meta.rows.close()


def adopt(buffer: Any, *, keeps_rows: bool) -> Adoption:
    """Let the rows of a buffer live in a ring, or say how they are saved otherwise.

    The library's own classes are adopted with the rows that they hold, CachedReplayBuffer apart.
    Buffers of other classes are left alone and copied whole at every snapshot, which `notes` tells;
    so are those that training empties before every snapshot (`keeps_rows=False`), at no cost.
    Raises ConfigError for a buffer that is in a ring already.
    """
    if isinstance(buffer, InRing):
        raise ConfigError("this buffer is in a ring already: one run at a time")
    if not keeps_rows or type(buffer) not in KNOWN:
        return Adoption(buffer, None)
    meta = RingMeta.over(_rows_for(buffer))
    former = buffer._meta
    if former.get_keys():
        _fill(buffer, meta)
    _install(buffer, meta)
    return Adoption(buffer, meta)


def _rows_for(buffer: Any) -> BufferRows:
    parts = parts_of(buffer)
    lanes = parts[1:] or parts
    rewrites = any(hasattr(part, "_altered_indices") for part in parts)
    return BufferRows(len(lanes), int(lanes[0].maxsize), rewrites=rewrites)


def _fill(buffer: Any, meta: RingMeta) -> None:
    """Move the rows of a stock buffer into the ring, oldest first; extras as they are."""
    if hasattr(buffer, "_restore_cache"):
        buffer._restore_cache()
    held = buffer._meta
    meta.lay_out(Layout.of_rows(held))
    rows = meta.rows
    parts = parts_of(buffer)
    found = dict(leaves(held))
    assert meta.layout is not None
    for lane, part in enumerate(parts[1:] or parts):
        size, place = int(part._size), int(part._insertion_idx)
        ids = np.arange(size) if size < rows.per_lane else (np.arange(size) + place) % size
        at = ids + lane * rows.per_lane
        values = {
            name_of(path): np.asarray(found[path][at], dtype=rows.column_dtype(name_of(path)))
            for path in meta.layout.fields
        }
        rows.fill(lane, place, values)
    for path, array in found.items():
        if path not in meta.layout.fields:
            meta.put_extra(path, array)


def _install(buffer: Any, meta: RingMeta) -> None:
    """Put `meta` and the classes that know it into a buffer and its sub-buffers."""
    stock = getattr(type(buffer), "stock_class", type(buffer))
    buffer.__class__ = ring_class(stock)
    parts = parts_of(buffer)
    buffer.__dict__.update(_meta=meta, rows=meta.rows, lane=0)
    for lane, part in enumerate(parts[1:]):
        part.__class__ = lane_class(getattr(type(part), "stock_class", type(part)))
        part.__dict__.update(_meta=meta.views[lane], rows=meta.rows, lane=lane)
