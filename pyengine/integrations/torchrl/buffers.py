"""A TorchRL replay buffer as part of a run: everything but its rows.

Rows are the ring's (storage.py). What else decides the next batch is small: where the writer goes
on, what the sampler carries, the generator, the state of transforms.
"""

from __future__ import annotations

from typing import Any

from torchrl.data import replay_buffers as stock

from pyengine.capture.protocol import type_name, type_text
from pyengine.errors import ConfigError, ModelStateError, ReplacedObjectError, StateMismatchError
from pyengine.integrations.torchrl.layout import Layout
from pyengine.integrations.torchrl.samplers import (
    SamplerState,
    check_writer,
    set_writer_state,
    writer_state,
)
from pyengine.integrations.torchrl.storage import RingStorage

_BUFFERS: tuple[type[Any], ...] = (
    stock.ReplayBuffer,
    stock.TensorDictReplayBuffer,
    stock.PrioritizedReplayBuffer,
    stock.TensorDictPrioritizedReplayBuffer,
)
_PARTS = ("_storage", "_sampler", "_writer", "_transform", "_rng")
_END_KEYS = (("next", "done"), ("next", "truncated"))


class BufferState:
    """Gives and takes what a buffer carries beside its rows.

    Raises ConfigError for a buffer, sampler or writer that cannot be saved, naming those that can,
    ModelStateError for one that holds elements already.
    """

    def __init__(self, buffer: Any) -> None:
        _check_kind(buffer)
        self._buffer = buffer
        self.storage: RingStorage = buffer.storage
        check_writer(buffer.writer, is_mutable=self.storage.is_mutable)
        self._sampler = SamplerState(buffer.sampler)
        self._parts = {name: getattr(buffer, name) for name in _PARTS}
        if len(self.storage):
            raise ModelStateError(
                f"the buffer holds {len(self.storage)} elements already; a run saves it from the "
                "first one on: begin the run before collecting"
            )

    @property
    def generator(self) -> Any:
        """The buffer's own torch.Generator; None where it draws from the process's."""
        return self._parts["_rng"]

    @property
    def is_ahead(self) -> bool:
        """Whether batches are drawn ahead by other threads."""
        return bool(self._buffer._prefetch)

    def is_of(self, buffer: Any) -> bool:
        """Return whether this is the state of `buffer`."""
        return buffer is self._buffer

    def describe(self) -> dict[str, Any]:
        """Return what a run and a script must agree on, as plain JSON values."""
        storage = self.storage
        return {
            "buffer": type_name(self._buffer),
            "storage_size": int(storage.max_size),
            "storage_dims": int(storage.ndim),
            "mutable": storage.mutable_keys,
            "sampler": type_name(self._buffer.sampler),
            "writer": type_name(self._buffer.writer),
        }

    def check_parts(self) -> None:
        """Raise ReplacedObjectError where a part of the buffer is not the one that is saved."""
        for name, part in self._parts.items():
            if getattr(self._buffer, name) is not part:
                raise ReplacedObjectError(
                    f"the buffer's {name[1:]} was replaced after the run began, and the run saves "
                    "the former one: set it before the run begins, and change it in place",
                    component=name[1:],
                )

    def get_state(self) -> dict[str, Any]:
        """Return the state, once nothing draws ahead. Batches that wait in a queue are no part."""
        self.check_parts()
        self._buffer.synchronize()
        buffer = self._buffer
        return {
            "writer": writer_state(buffer.writer),
            "sampler": self._sampler.get_state(),
            "transform": _transform_state(buffer),
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise StateMismatchError where the state does not fit; change nothing."""
        self._sampler.check_state(state["sampler"])
        here, got = sorted(_transform_state(self._buffer)), sorted(state["transform"])
        if here != got:
            raise StateMismatchError(
                "the buffer's transforms hold other values", component="replay_buffer",
                expected=here, got=got,
            )  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back, after the rows."""
        buffer = self._buffer
        set_writer_state(buffer.writer, state["writer"])
        self._sampler.set_state(state["sampler"])
        if state["transform"]:
            buffer.transform.load_state_dict(state["transform"])

    def close_open_episodes(self) -> None:
        """End the episodes of the newest rows, so that no slice joins them with what comes."""
        storage = self.storage
        if not len(storage):
            return
        sampler = self._buffer.sampler
        own = [getattr(sampler, "end_key", None), *(getattr(sampler, "end_keys", None) or ())]
        keys = dict.fromkeys((*_END_KEYS, *(key for key in own if key is not None)))
        newest = storage._last_cursor_index
        storage.rows.close_open_episodes(newest, storage.end_fields(list(keys)))
        storage._bump_mutation_revision()


class StorageState:
    """Gives and takes what a RingStorage has beside its ring."""

    def __init__(self, storage: RingStorage) -> None:
        self._storage = storage

    def get_state(self) -> dict[str, Any]:
        """Return the state, the layout of elements with it: a later start knows none of its own."""
        storage = self._storage
        if not storage.initialized:
            return {"layout": None}
        return {
            "layout": storage.rows.layout.to_record(),
            "rows": storage.rows.get_state(),
            "cursor": storage._last_cursor_index,
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise StateMismatchError where elements are others."""
        if state["layout"] is None or not self._storage.initialized:
            return
        here, got = self._storage.rows.layout, Layout.from_record(state["layout"])
        if here != got:
            raise StateMismatchError(
                "the elements of the buffer are others than the snapshot's",
                component="replay_index", expected=list(here.leaves), got=list(got.leaves),
            )  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back, after the ring was restored."""
        storage = self._storage
        if state["layout"] is None:
            return
        storage.rows.set_state(state["rows"])
        cursor = state["cursor"]
        storage._set_last_cursor(cursor)
        storage._bump_mutation_revision()


def _check_kind(buffer: Any) -> None:
    known = ", ".join(kind.__name__ for kind in _BUFFERS)
    if type(buffer) not in _BUFFERS or not getattr(buffer, "_sync", True):
        raise ConfigError(
            f"replay_buffer: {type_text(buffer)} cannot be saved as it is; these can: {known}, "
            "those by priority with sync=True",
            field="replay_buffer",
            expected=known,
            got=type_text(buffer),
        )
    if type(buffer.storage) is not RingStorage:
        raise ConfigError(
            f"replay_buffer: its storage is a {type_text(buffer.storage)}; a run saves the rows of "
            "ReplayBuffer(storage=RingStorage(max_size), ...)",
            field="storage",
            expected="RingStorage",
            got=type_text(buffer.storage),
        )
    if buffer.shared:
        raise ConfigError("replay_buffer: shared=True is for workers, which a RingStorage has none")


def _transform_state(buffer: Any) -> dict[str, Any]:
    transform = getattr(buffer, "_transform", None)
    return dict(transform.state_dict()) if transform is not None else {}
