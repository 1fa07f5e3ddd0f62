"""Import from the pickle that Stable-Baselines3's `save_replay_buffer` writes.

The library has no other format, and a pickle is read whole: memory is that of the buffer, on top of
the few MiB that everything else takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.capture.pickled import load_file
from pyengine.errors import ConfigError, PickleRefusedError, UnportableError
from pyengine.events import Progress
from pyengine.format.schema import Field, Schema
from pyengine.fs import door
from pyengine.porting.arrival import Destination, Imported
from pyengine.porting.pieces import rows_at_a_time
from pyengine.porting.source import (
    EPISODE_END,
    Contents,
    SourcePiece,
    open_source,
)
from pyengine.replay.ring import ReplayBuffer

Array = NDArray[Any]

_BUFFERS = ("ReplayBuffer", "DictReplayBuffer", "NStepReplayBuffer", "HerReplayBuffer")


def import_sb3(
    source: str | os.PathLike[str],
    run: str | os.PathLike[str] | None = None,
    *,
    allow_pickle: bool = False,
    into: ReplayBuffer | None = None,
    ring: str = "replay",
    capacity: int | None = None,
    step: int = 0,
    progress: Progress | None = None,
) -> Imported:
    """Bring the rows of a saved replay buffer into the new run directory `run`, or `into` a ring.

    **Reading a pickle runs code of whoever wrote it**, with the rights of this process: it may
    read, send or delete whatever you can. So `allow_pickle=True` is for files of your own alone.

    Lanes are the environments; fields are those of `Schema.from_env`: obs, action, reward,
    next_obs, terminated (done and no timeout), truncated (timeout), nested for Dict observations,
    in the shapes of the spaces. Where the library keeps an observation once for two rows
    (optimize_memory_usage) next_obs is what it would sample. Arguments and errors otherwise as for
    `import_npz`; PickleRefusedError without `allow_pickle`, ConfigError where Stable-Baselines3 is
    not installed.
    """
    path = os.fspath(source)
    destination = Destination(run, into, ring, capacity, step, progress)
    destination.check()
    if not allow_pickle:
        raise PickleRefusedError(
            f"{path} is a pickle, and reading one runs code of whoever wrote it, which may do what "
            "you may: read, send or delete any file. If it is your own: allow_pickle=True "
            "(--allow-pickle)",
            component=ring,
        )
    return destination.receive(Sb3Rows(path, _load(path)))


def _load(path: str) -> Any:
    try:
        from stable_baselines3.common import buffers
        from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
    except ImportError as error:
        raise ConfigError(
            f"reading {path} needs Stable-Baselines3 ({error}): pip install 'pyengine-rl[sb3]'"
        ) from error
    door.active.close(open_source(path, "a pickle"))
    buffer = load_file(path)
    known = {HerReplayBuffer, *(getattr(buffers, name, None) for name in _BUFFERS)}
    if type(buffer) not in known:
        raise UnportableError(
            f"{path} holds a {type(buffer).__module__}.{type(buffer).__qualname__}; rows are taken "
            f"from Stable-Baselines3's {', '.join(_BUFFERS)}",
            path=path,
            expected=_BUFFERS,
            got=type(buffer).__qualname__,
        )
    return buffer


class Sb3Rows:
    """A replay buffer of Stable-Baselines3, in memory, as a source of rows."""

    def __init__(self, path: str, buffer: Any) -> None:
        self._buffer = buffer
        self._overlaps = bool(buffer.optimize_memory_usage)
        steps, size = int(buffer.pos), int(buffer.buffer_size)
        if buffer.full:
            # Kept once, the observation of the oldest row is the newest next one.
            first = steps + 1 if self._overlaps else steps
            self._order = range(first, steps + size)
        else:
            self._order = range(steps)
        schema = Schema.from_spaces(buffer.observation_space, buffer.action_space)
        action = Field(schema["action"].shape, buffer.actions.dtype)
        self.contents = Contents(
            format="sb3",
            path=path,
            schema=Schema({**schema, "action": action}, episode_end=EPISODE_END),
            lane_rows=(len(self._order),) * int(buffer.n_envs),
            capacity=size * int(buffer.n_envs),
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        buffer = self._buffer
        if buffer.actions.dtype.kind == "f":
            yield "actions are as the library keeps them: of a box, scaled to [-1, 1]"
        if self._overlaps:
            yield (
                "optimize_memory_usage: behind the last row of an episode next_obs is the first "
                "observation of the next one, as the library samples it"
            )
        if not buffer.handle_timeout_termination:
            yield "handle_timeout_termination=False: timeouts are not known, and are terminations"
        if type(buffer).__name__ == "NStepReplayBuffer":
            yield f"rows are single steps: sample(n_step={buffer.n_steps}, gamma={buffer.gamma})"
        if hasattr(buffer, "n_sampled_goal"):
            yield "goals are those that were pursued: relabelling and infos are left out"

    def pieces(self) -> Iterator[SourcePiece]:
        """Yield all rows, lane by lane."""
        at_once = rows_at_a_time(self.contents.schema.values())
        size = int(self._buffer.buffer_size)
        for lane in range(len(self.contents.lane_rows)):
            for begin in range(0, len(self._order), at_once):
                steps = np.array(self._order[begin : begin + at_once]) % size
                yield SourcePiece(lane, self._rows(steps, lane))

    def _rows(self, steps: NDArray[np.int64], lane: int) -> dict[str, Array]:
        buffer = self._buffer
        dones = buffer.dones[steps, lane] != 0
        timeouts = buffer.timeouts[steps, lane] != 0
        if self._overlaps:
            later = self._observations(
                "next_obs", buffer.observations, (steps + 1) % len(buffer.dones), lane
            )
        else:
            later = self._observations("next_obs", buffer.next_observations, steps, lane)
        return {
            **self._observations("obs", buffer.observations, steps, lane),
            "action": self._shaped("action", buffer.actions[steps, lane]),
            "reward": buffer.rewards[steps, lane],
            **later,
            "terminated": dones & ~timeouts,
            "truncated": timeouts,
        }

    def _observations(
        self, name: str, stored: Any, steps: NDArray[np.int64], lane: int
    ) -> dict[str, Array]:
        if not isinstance(stored, dict):
            return {name: self._shaped(name, stored[steps, lane])}
        return {
            f"{name}/{key}": self._shaped(f"{name}/{key}", values[steps, lane])
            for key, values in stored.items()
        }

    def _shaped(self, name: str, values: Array) -> Array:
        """Return values in the shape of their space: the library gives numbers an axis of one."""
        return values.reshape(len(values), *self.contents.schema[name].shape)
