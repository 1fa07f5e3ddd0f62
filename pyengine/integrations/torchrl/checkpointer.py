"""TorchRL's own ways to save and load a buffer, for a RingStorage: everything, at once.

They are for moving a buffer elsewhere; a run saves its rows as they come.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase

from pyengine.integrations.torchrl.layout import Layout

if TYPE_CHECKING:
    from pyengine.integrations.torchrl.storage import RingStorage

_ELEMENTS = "elements"
_METADATA = "storage_metadata.json"


class RingStorageCheckpointer(StorageCheckpointerBase):
    """Saves all elements as memory-mapped files, and loads them into a RingStorage again."""

    def dumps(self, storage: RingStorage, path: Any) -> None:
        """Write all elements below `path`; RuntimeError where there are none yet."""
        path = Path(path)
        path.mkdir(exist_ok=True)
        if not storage.initialized:
            raise RuntimeError("Cannot save a non-initialized storage.")
        self._set_hooks_shift_is_full(storage)
        elements = storage.get(tuple(slice(None) for _ in range(storage.ndim)))
        for hook in self._save_hooks:
            elements = hook(elements, path=path)
        TensorDict({_ELEMENTS: elements}).memmap(path / _ELEMENTS)
        record = {"len": len(storage), "position": storage.rows.position}
        (path / _METADATA).write_text(json.dumps(record))

    def loads(self, storage: RingStorage, path: Any) -> None:
        """Replace all elements by those below `path`."""
        path = Path(path)
        record = json.loads((path / _METADATA).read_text())
        elements = TensorDict.load_memmap(path / _ELEMENTS)[_ELEMENTS]
        for hook in self._load_hooks:
            elements = hook(elements, path=path)
        refill(storage, elements, record["len"], record["position"])


def refill(storage: RingStorage, held: Any, length: int, position: int | None) -> None:
    """Let a storage hold the first `length` elements of `held`, at the indices they have there.

    `held` is a tensor, a TensorDict or the state of one; `position` the index of the oldest element
    of a full storage (None: not known, then the first is taken for the oldest).
    """
    storage._empty()
    if not length:
        return
    elements: Any = held
    if not isinstance(held, (torch.Tensor, TensorDictBase)):
        elements = TensorDict().load_state_dict(held, strict=False)
    lanes = elements.shape[1 : storage.ndim].numel()
    steps = length // lanes
    elements = elements[:steps]
    is_full = steps == -(-storage.max_size // lanes)
    turn = (position or 0) % steps if is_full else 0
    if storage._rows is None:
        storage.make_rows(Layout.of(elements[0], storage.ndim - 1))
    rows = storage.rows
    if rows.is_mutable:
        storage.set(slice(0, steps), elements)
        return
    # Oldest first: a ring forgets in the order in which rows came.
    oldest_first = torch.cat([elements[turn:], elements[:turn]]) if turn else elements
    rows.begin_at(turn)
    rows.append(rows.layout.split(oldest_first, steps), is_one=False)
    storage._set_last_cursor((turn - 1) % steps if is_full else steps - 1)
    storage._bump_mutation_revision()
