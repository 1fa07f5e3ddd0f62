"""The library's buffers with their rows in a ring: same calls, same draws, same batches.

A class is made for each of the library's, and put under an existing buffer by `adopt`, so that
there are no constructors here. Pickles, copies and HDF5 files hold the stock class with arrays of
its own, so that a saved buffer needs no pyengine.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from tianshou.data import (
    Batch,
    HERReplayBuffer,
    HERReplayBufferManager,
    HERVectorReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferManager,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    ReplayBufferManager,
    VectorReplayBuffer,
)

from pyengine.errors import ConfigError, ImmutableFieldError
from pyengine.integrations.tianshou.buffers.meta import RingMeta
from pyengine.integrations.tianshou.buffers.trees import fill_tree

KNOWN: tuple[type[Any], ...] = (
    ReplayBuffer,
    ReplayBufferManager,
    VectorReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferManager,
    PrioritizedVectorReplayBuffer,
    HERReplayBuffer,
    HERReplayBufferManager,
    HERVectorReplayBuffer,
)
"""Classes whose rows can live in a ring: these themselves, no classes derived from them."""

_REWRITING = (HERReplayBuffer, HERReplayBufferManager)


class InRing:
    """What differs from the stock class, which comes after it in the order of classes."""

    stock_class: type[Any]

    @property
    def ring_meta(self) -> RingMeta:
        """The rows; ConfigError where another memory was put in their place."""
        meta = self.__dict__["_meta"]
        if not isinstance(meta, RingMeta):
            raise ConfigError(
                "the memory of a buffer that is in a ring was replaced: leave `_meta` alone, and "
                "add rows by add()"
            )
        return meta

    def reset(self, keep_statistics: bool = False) -> None:
        """Empty the buffer.

        Unlike stock's, places without a row read as zeros then, and a prioritised buffer draws none
        of them.
        """
        stock: Any = super()
        stock.reset(keep_statistics=keep_statistics)
        self.ring_meta.rows.clear()
        if isinstance(self, PrioritizedReplayBuffer):
            fill_tree(self.weight, 0.0)

    def hasnull(self) -> bool:
        """Whether a value of a row is NaN. Stock's reads every row; here each was looked at once.

        Where looking draws numbers, or stacks leave rows out, this is stock's.
        """
        stock: Any = super()
        buffer: Any = self
        if isinstance(self, _REWRITING) or (buffer._sample_avail and buffer.stack_num > 1):
            return bool(stock.hasnull())
        meta = self.ring_meta
        if meta.rows.has_null():
            return True
        extras = meta.extras.values()
        if not extras:
            return False
        indices = buffer.sample_indices(0)
        return bool(Batch({str(i): array[indices] for i, array in enumerate(extras)}).hasnull())

    def set_array_at_key(
        self, seq: Any, key: str, index: Any = None, default_value: Any = None
    ) -> None:
        """Keep an array beside the rows: an extra, copied whole into every snapshot."""
        self.ring_meta._check_key(key)
        stock: Any = super()
        stock.set_array_at_key(seq, key, index, default_value)

    def set_batch(self, batch: Any) -> None:
        """Refuse another memory."""
        raise ImmutableFieldError(
            "set_batch: the rows of this buffer live in a ring; add them by add(), or make a "
            "buffer from them before training",
            field="_meta",
            expected="no other memory",
            got=type(batch).__name__,
        )

    def dropnull(self) -> None:
        """Refuse to take rows out."""
        raise ImmutableFieldError(
            "dropnull: rows of a buffer in a ring stay until they age out; keep NaN out of them",
            field="_meta",
            expected="no change",
            got="dropnull",
        )

    def update(self, buffer: Any) -> Any:
        """Append the rows of another buffer, oldest first; return the places they went to."""
        me: Any = self
        meta = self.ring_meta
        if meta.views:
            stock: Any = super()
            return stock.update(buffer)  # which refuses
        if isinstance(me, HERReplayBuffer):
            me._restore_cache()
        stack_num, buffer.stack_num = buffer.stack_num, 1
        try:
            taken = buffer.sample_indices(0) if len(buffer) and me.maxsize else ()
        finally:
            buffer.stack_num = stack_num
        places = []
        for at in taken:
            row = buffer._meta[np.array([at])]
            place, me.last_index[0] = me._insertion_idx, me._insertion_idx
            me._insertion_idx = (place + 1) % me.maxsize
            me._size = min(me._size + 1, me.maxsize)
            meta[np.array([place])] = row
            places.append(place)
        found = np.array(places, int)
        if isinstance(me, PrioritizedReplayBuffer) and places:
            me.init_weight(found)
        return found

    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """Save what the stock class would."""
        as_stock(self).save_hdf5(path, compression)

    def _set_batch_for_children(self) -> None:
        """Leave the sub-buffers' views as they are: they are made with the columns."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return object.__new__, (self.stock_class,), vars(as_stock(self))


class Rewriting:
    """Hindsight replay whose new goals are laid over the rows instead of written into them.

    For buffers and sub-buffers alike; `lane` tells which rows are this one's.
    """

    lane: int
    rows: Any

    def _restore_cache(self) -> None:
        me: Any = self
        altered = getattr(me, "_altered_indices", None)
        if altered is None or altered.size == 0:
            return
        self.rows.forget_laid(self.lane)
        if "rew" in self.rows.mirrors:
            self.rows.restore_mirror("rew", altered + self.lane * self.rows.per_lane)
        self.forget_altered()

    def forget_altered(self) -> None:
        """Begin without rewritten rows, as after a restore."""
        self.__dict__["_original_meta"] = Batch()
        self.__dict__["_altered_indices"] = np.array([])


def ring_class(stock: type[Any]) -> type[Any]:
    """Return the class that a buffer of class `stock` gets."""
    bases: tuple[type[Any], ...] = (InRing, stock)
    if issubclass(stock, HERReplayBuffer):
        bases = (InRing, Rewriting, stock)
    return _class_like(stock, bases)


def lane_class(stock: type[Any]) -> type[Any]:
    """Return the class that a sub-buffer gets."""
    return _class_like(stock, (Rewriting, stock)) if issubclass(stock, HERReplayBuffer) else stock


_made: dict[tuple[type[Any], ...], type[Any]] = {}


def _class_like(stock: type[Any], bases: tuple[type[Any], ...]) -> type[Any]:
    if bases not in _made:
        made = _made[bases] = type(stock.__name__, bases, {"stock_class": stock})
        made.__module__, made.__qualname__ = stock.__module__, stock.__qualname__
    return _made[bases]


def as_stock(buffer: Any) -> Any:
    """Return a copy of a buffer in a ring as the stock class has it, its rows in arrays."""
    if hasattr(buffer, "_restore_cache"):
        buffer._restore_cache()
    copied, held = _bare_copy(buffer), vars(buffer)
    rows = copied.__dict__["_meta"] = Batch(_arrays(buffer.ring_meta))
    if "buffers" in held:
        parts = copied.__dict__["buffers"] = np.empty(len(buffer.buffers), object)
        for lane, part in enumerate(buffer.buffers):
            parts[lane] = _bare_copy(part)
            if rows.get_keys():
                first = lane * part.maxsize
                parts[lane].__dict__["_meta"] = rows[first : first + part.maxsize]
    return copied


def _bare_copy(buffer: Any) -> Any:
    stock: Any = getattr(type(buffer), "stock_class", type(buffer))
    copied = stock.__new__(stock)
    left = {"rows", "lane", "_meta"}
    copied.__dict__.update({
        name: copy.copy(value) for name, value in vars(buffer).items() if name not in left
    })  # fmt: skip
    copied.__dict__["_meta"] = Batch()
    return copied


def _arrays(batch: Any) -> dict[str, Any]:
    return {
        key: Batch(_arrays(value))
        if isinstance(value, Batch)
        else np.array(value)
        if not hasattr(value, "detach")
        else value.clone()
        for key, value in batch.items()
    }
