"""A replay buffer of the default size takes memory for the rows that it has, and for no others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import stable_baselines3 as sb3
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback

from pyengine.integrations.sb3 import SnapshotCallback

STEPS = 300
IMAGE = (1, 48, 48)
LIMIT_BYTES = 48 << 20
"""Room for what a process takes besides rows; the whole buffer would be 4,600 MB."""


class Noise(gymnasium.Env[Any, Any]):
    """Images that do not compress."""

    observation_space = spaces.Box(0, 255, IMAGE, np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: Any) -> Any:
        return self._look(), 0.0, False, False, {}

    def _look(self) -> Any:
        return self.np_random.integers(0, 256, IMAGE, dtype=np.uint8)


class Memory(BaseCallback):
    """Notes the memory of this process, private and shared, before the first row and at the end."""

    def _on_rollout_start(self) -> None:
        self.sizes = [*getattr(self, "sizes", []), (resident_bytes(), shared_bytes())]

    def _on_step(self) -> bool:
        return True


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def shared_bytes() -> int:
    """Return what lies in the shared memory that this process has open or mapped."""
    with open("/proc/self/smaps") as file:
        lines = file.read().splitlines()
    total, is_ours = 0, False
    for line in lines:
        if "-" in line.split(" ", 1)[0] and not line.split(" ", 1)[0].endswith(":"):
            is_ours = "/dev/shm/" in line or "/memfd:" in line
        elif is_ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def learn(send: Callable[[Any], None], run_dir: Path) -> None:
    before = resident_bytes()
    model = sb3.DQN("CnnPolicy", Noise(), learning_starts=10_000, device="cpu", seed=0)
    assert model.buffer_size == 1_000_000
    memory = Memory()
    own = SnapshotCallback(run_dir, every_steps=100, budget=None, verbose=0)
    model.learn(STEPS, callback=[own, memory])
    send(("sizes", before, memory.sizes))


def test_no_memory_is_taken_before_rows_exist(start: Any, tmp_path: Path) -> None:
    child = start(learn, tmp_path / "run")
    _, before, sizes = child.receive("sizes")
    assert child.join() == 0
    (resident, shared), (resident_at_end, shared_at_end) = sizes[0], sizes[-1]
    print(before, sizes[0], sizes[-1])
    rows_bytes = STEPS * 2 * int(np.prod(IMAGE))
    assert shared < LIMIT_BYTES
    assert resident - before < LIMIT_BYTES
    assert 0 < shared_at_end - shared < rows_bytes + LIMIT_BYTES
    assert resident_at_end - resident < rows_bytes + LIMIT_BYTES
