"""What is to be measured: the arguments of `pyengine bench`, checked, and what they take of memory
and disk.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pyengine.cli.words import format_bytes, parse_bytes
from pyengine.errors import ConfigError, NoSpaceError, SharedMemoryError
from pyengine.format.counts import as_count
from pyengine.format.schema import Field, Schema
from pyengine.shm.headroom import headroom

WAYS = ("plain", "tracked", "snapshot")
"""The ways in which steps are made, in turns; see windows.py."""

LEAST_ROUNDS = 6
"""Of fewer, no interval of the median holds with 95 %."""

LEAST_STATE_BYTES = 10_000
DEFAULT_ROWS = 100_000
DEFAULT_RING_BYTES = 500_000_000
"""Rows without --capacity: the first, or as many as the second takes. The cost of a snapshot does
not depend on it."""

PROBE_BYTES = 128 * 1024 * 1024
"""Written at once to see what the disk can do."""

_PROCESSES_BYTES = 400_000_000
_DISK_MARGIN_BYTES = 64_000_000
_STATES_IN_MEMORY = 4
"""The model with its optimizer and gradients, and two staging slots; after these, while it is
restored, what was read and one slot."""

_STATES_ON_DISK = 3
"""The newest snapshot, the one that is being written, and one that is being deleted."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A state to save: rows of `schema` in a ring of `capacity`, a model and optimizer of
    `state_bytes`; a snapshot every `every_steps` steps.

    `steps` is how many are measured in all, None: as many as a minute has. `env` makes the rows
    where there is one; who made the workload closes it.
    """

    schema: Schema
    state_bytes: int
    every_steps: int
    steps: int | None
    capacity: int
    env: Any = None

    @classmethod
    def check(
        cls,
        *,
        env: str | None,
        obs_shape: str | None,
        obs_dtype: str,
        action_shape: str | None,
        model_bytes: str,
        every_steps: str,
        steps: str | None,
        capacity: str | None,
    ) -> Workload:
        """Return what the options ask for; ConfigError or SchemaError naming one, nothing made."""
        state_bytes = parse_bytes("--model-bytes", model_bytes)
        as_count("--model-bytes", state_bytes, least=LEAST_STATE_BYTES)
        every = _count("--every-steps", every_steps, least=1)
        counted = (
            None if steps is None else _count("--steps", steps, least=len(WAYS) * LEAST_ROUNDS)
        )
        rows = None if capacity is None else _count("--capacity", capacity, least=2)
        if (env is None) == (obs_shape is None):
            raise ConfigError(
                "say what a row is: either --env ID, or --obs-shape 17 (--obs-shape 4,84,84 "
                "--obs-dtype uint8, --action-shape 6)",
                field="--env",
                expected="either --env or --obs-shape",
                got=(env, obs_shape),
            )
        if env is None:
            made = None
            shapes = (_shape("--obs-shape", obs_shape), _shape("--action-shape", action_shape))
            schema = _transition(Field(shapes[0], obs_dtype), Field(shapes[1]))
        else:
            made = _make_env(env)
            schema = Schema.from_env(made)
        if rows is None:
            rows = max(2, min(DEFAULT_ROWS, DEFAULT_RING_BYTES // schema.row_bytes))
        return cls(schema, state_bytes, every, counted, rows, made)

    def check_space(self, directory: str, ring_bytes: int) -> None:
        """Raise SharedMemoryError or NoSpaceError where memory, or the disk of `directory`, is too
        small; ConfigError where there is no such directory. `ring_bytes`: of all rings."""
        if not os.path.isdir(directory):
            raise ConfigError(
                f"--dir: {directory} is no directory: make it first, on the disk to be measured",
                field="--dir",
                expected="a directory",
                got=directory,
            )
        needed = ring_bytes + _STATES_IN_MEMORY * self.state_bytes + _PROCESSES_BYTES
        free = headroom(with_shm=False)
        if needed > free:
            raise SharedMemoryError(
                f"{format_bytes(needed)} of memory are needed, {format_bytes(free)} are free: "
                f"{format_bytes(ring_bytes)} for rings of {self.capacity} rows, the rest for "
                f"{_STATES_IN_MEMORY} times the model; take a smaller --capacity or --model-bytes",
                needed_bytes=needed,
                free_bytes=free,
            )
        rows = self.capacity + 2 * min(self.every_steps, self.capacity)
        needed = rows * self.schema.row_bytes + _STATES_ON_DISK * self.state_bytes
        needed += PROBE_BYTES + _DISK_MARGIN_BYTES
        room = os.statvfs(directory)
        free = room.f_bavail * room.f_frsize
        if needed > free:
            raise NoSpaceError(
                f"{directory}: {format_bytes(needed)} of disk are needed, {format_bytes(free)} are "
                "free: take a smaller --capacity or --model-bytes, or another --dir",
                needed_bytes=needed,
                free_bytes=free,
            )


def _transition(obs: Field, action: Field) -> Schema:
    fields = {"obs": obs, "action": action, "reward": Field((), "float32"), "next_obs": obs}
    ends = {name: Field((), "bool") for name in ("terminated", "truncated")}
    return Schema({**fields, **ends}, episode_end=tuple(ends))


def _make_env(env_id: str) -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise ConfigError(
            f"--env needs Gymnasium ({error}): pip install 'pyengine-rl[gym]', or give --obs-shape",
            field="--env",
            expected="Gymnasium to be installed",
            got=env_id,
        ) from error
    try:
        return gymnasium.make(env_id)
    except Exception as error:  # an environment's own code may raise anything
        raise ConfigError(
            f"--env {env_id}: Gymnasium cannot make it ({type(error).__name__}: {error})",
            field="--env",
            expected="the id of an environment, as gymnasium.make takes it",
            got=env_id,
        ) from error


def _count(name: str, text: str, *, least: int) -> int:
    digits = text.replace("_", "").replace(",", "")
    return as_count(name, int(digits) if digits.isdecimal() else text, least=least)


def _shape(name: str, text: str | None) -> tuple[int, ...]:
    """Return the sizes in "4,84,84"; of nothing, as of "scalar", there are none."""
    if text is None or text == "scalar":
        return ()
    return tuple(_count(name, size.strip(), least=1) for size in text.strip("()").split(","))
