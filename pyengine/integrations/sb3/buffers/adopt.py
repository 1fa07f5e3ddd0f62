"""Adopt a model's replay buffer: its rows move into a ring, and the model notices nothing.

The buffer object stays; its class and its arrays change. So nothing has to be said when the model
is made, `save` and `load` of the model see the stock class, and n-step returns stay available.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from stable_baselines3 import HerReplayBuffer as StockHerReplayBuffer
from stable_baselines3.common import buffers as stock

from pyengine.errors import ConfigError, ReplacedObjectError
from pyengine.integrations.sb3.buffers.classes import DictReplayBuffer, ReplayBuffer
from pyengine.integrations.sb3.buffers.copied import CopiedBuffer
from pyengine.integrations.sb3.buffers.her import HerReplayBuffer
from pyengine.integrations.sb3.buffers.nstep import NStepReplayBuffer

_ADOPTED: dict[type[stock.ReplayBuffer], type[ReplayBuffer]] = {
    stock.ReplayBuffer: ReplayBuffer,
    stock.DictReplayBuffer: DictReplayBuffer,
    stock.NStepReplayBuffer: NStepReplayBuffer,
    StockHerReplayBuffer: HerReplayBuffer,
}


class Adoption:
    """What became of a model's replay buffer. Made by `adopt`.

    `objects` is for `engine.track(**objects)`, `notes` are lines for people: what is copied at
    every snapshot, what is not saved.
    """

    def __init__(
        self,
        buffer: stock.ReplayBuffer | None,
        objects: dict[str, Any] | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self._buffer = buffer
        self.objects = objects or {}
        self.notes = notes

    def check(self, model: Any) -> None:
        """Raise ReplacedObjectError where the model has another replay buffer by now.

        That is what `load_replay_buffer` does: it replaces the buffer, and snapshots would go on to
        hold the rows of the former one.
        """
        if getattr(model, "replay_buffer", None) is not self._buffer:
            raise ReplacedObjectError(
                "the model's replay buffer was replaced (load_replay_buffer does that) after its "
                "rows became part of the snapshots; load it into a model that takes no snapshots, "
                "or let the snapshot bring the rows back",
                component="replay",
            )

    def close_open_episode(self) -> None:
        """End the episodes that the newest rows belong to; call it after environments were reset.

        No row that is sampled from then on joins two episodes. Rows of plain and Dict buffers hold
        their own next observation and never do. Where the next row's observation serves as the next
        observation (optimize_memory_usage), the newest row becomes done, as in stock's own
        `learn`; n-step returns end at the newest row, which becomes truncated unless it is done.
        """
        buffer = self._buffer
        if buffer is None or buffer.size() == 0:
            return
        if isinstance(buffer, StockHerReplayBuffer):
            with warnings.catch_warnings():
                # It warns that it truncates, which is what it is called for.
                warnings.simplefilter("ignore")
                buffer.truncate_last_trajectory()
            return
        newest = buffer.pos - 1
        if buffer.optimize_memory_usage:
            buffer.dones[newest] = True
        elif isinstance(buffer, stock.NStepReplayBuffer):
            is_open = np.logical_not(buffer.dones[newest])
            buffer.timeouts[newest] = np.logical_or(buffer.timeouts[newest], is_open)

    def release(self) -> None:
        """Give the buffer its stock class and arrays back, and free the ring. Idempotent.

        The arrays take the memory that stock's take. Close the engine before.
        """
        if isinstance(self._buffer, ReplayBuffer):
            self._buffer.move_out()


def adopt(model: Any) -> Adoption:
    """Let the rows of `model.replay_buffer` live in a ring, or say how they are saved otherwise.

    ReplayBuffer, DictReplayBuffer, NStepReplayBuffer and HerReplayBuffer themselves are adopted: in
    place, same batches for the same seed, no memory before rows exist. Buffers of other classes are
    left alone and copied whole at every snapshot, which `notes` tells with its cost. A model
    without a replay buffer has nothing to adopt.

    Raises ConfigError for a buffer that holds rows or is adopted already, SchemaError for spaces
    that a ring cannot store.
    """
    buffer = getattr(model, "replay_buffer", None)
    if buffer is None:
        return Adoption(None)
    if isinstance(buffer, ReplayBuffer):
        raise ConfigError("this model's replay buffer is in a ring already; one callback is enough")
    into = _ADOPTED.get(type(buffer))
    if into is None:
        copied = CopiedBuffer(buffer)
        return Adoption(buffer, {"replay": copied}, copied.notes)
    if buffer.size():
        raise ConfigError(
            f"the model's replay buffer already holds {buffer.size() * buffer.n_envs} rows; "
            "snapshots have to be there from the first one on (a buffer loaded from a file, or a "
            "model that has trained, cannot begin a run)"
        )
    buffer.__class__ = into
    try:
        buffer.move_in()
    except BaseException:
        buffer.__class__ = into.stock_class
        raise
    return Adoption(buffer, buffer.tracked())
