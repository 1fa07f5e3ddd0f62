"""Stable-Baselines3: ReplayBuffer, save_replay_buffer and save of a SAC model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import save_to_pkl

from benchmarks.rivals.replay import ReplayContestant
from benchmarks.rows import Columns, Rows


class Replay(ReplayContestant):
    """Where rows have no next_obs, `optimize_memory_usage=True`, the library's own way of that."""

    def __init__(self, rows: Rows, capacity: int, directory: Path) -> None:
        super().__init__(rows, capacity, directory)
        shapes = {name: (shape, dtype) for name, shape, dtype in rows.fields}
        shape, dtype = shapes["obs"]
        low, high = (0, 255) if dtype == "uint8" else (-np.inf, np.inf)
        observations = spaces.Box(low, high, shape, np.dtype(dtype).type)
        shape, dtype = shapes["action"]
        actions = spaces.Box(-1, 1, shape, np.float32) if shape else spaces.Discrete(18)
        self.buffer = ReplayBuffer(
            capacity,
            observations,
            actions,
            device="cpu",
            optimize_memory_usage=not rows.has("next_obs"),
            handle_timeout_termination=rows.has("next_obs"),
        )
        self._model: SAC | None = None

    def many_rows(self, rows: Columns) -> Columns:
        return rows

    def extend(self, form: Columns) -> None:
        """Write the arrays directly: the library has no call for many rows. For filling alone."""
        buffer, count = self.buffer, len(form["reward"])
        places = np.arange(buffer.pos, buffer.pos + count) % buffer.buffer_size
        buffer.observations[places, 0] = form["obs"]
        if "next_obs" in form:
            buffer.next_observations[places, 0] = form["next_obs"]
            buffer.timeouts[places, 0] = form["truncated"]
        buffer.actions[places, 0] = form["action"].reshape(count, -1)
        buffer.rewards[places, 0] = form["reward"]
        buffer.dones[places, 0] = form["terminated"] | form["truncated"]
        buffer.full = buffer.full or buffer.pos + count >= buffer.buffer_size
        buffer.pos = (buffer.pos + count) % buffer.buffer_size

    def sample(self, count: int) -> Any:
        return self.buffer.sample(count)

    def arrays(self, batch: Any) -> Columns:
        fields = {"obs": batch.observations, "action": batch.actions, "reward": batch.rewards}
        if self.rows.has("next_obs"):
            fields["next_obs"] = batch.next_observations
        return {name: tensor.numpy() for name, tensor in fields.items()}

    def one_row(self, row: Columns) -> tuple[Any, ...]:
        truncated = bool(row["truncated"][0])
        done = row["terminated"] | row["truncated"]
        following = row.get("next_obs", row["obs"])
        infos = [{"TimeLimit.truncated": truncated}]
        return row["obs"], following, row["action"], row["reward"], done, infos

    def add(self, form: tuple[Any, ...]) -> None:
        self.buffer.add(*form)

    def change(self) -> None:
        with torch.no_grad():
            for parameter in self._algorithm().policy.parameters():
                parameter.add_(1e-6)

    def save(self, place: Path) -> None:
        model = self._algorithm()
        model.save_replay_buffer(place / "replay.pkl")
        model.save(place / "model.zip")

    def get_ready(self, place: Path) -> None:
        self._algorithm()

    def load(self, place: Path) -> None:
        model = self._algorithm()
        model.load_replay_buffer(place / "replay.pkl")
        self.buffer = model.replay_buffer

    def _algorithm(self) -> SAC:
        """Return a SAC model with about 1 MB of parameters and Adam state, holding this buffer."""
        if self._model is None:
            environment = _Spaces(spaces.Box(-1, 1, (17,), np.float32))
            policy = {"net_arch": [128, 128]}
            self._model = SAC("MlpPolicy", environment, buffer_size=1, policy_kwargs=policy)
            self._model.replay_buffer = self.buffer
        return self._model


class Trained(Replay):
    """Saved beside the learner of the benchmark (`model`) as `save_replay_buffer` saves it."""

    model: Any

    def save(self, place: Path) -> None:
        save_to_pkl(place / "replay.pkl", self.buffer)
        torch.save(self.model.state_dict(), place / "model.pt")


class _Spaces(gymnasium.Env[Any, Any]):
    """An environment that is asked for its spaces only."""

    def __init__(self, observations: spaces.Space[Any]) -> None:
        self.observation_space = observations
        self.action_space = spaces.Box(-1, 1, (6,), np.float32)
