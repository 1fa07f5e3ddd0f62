"""Environments whose observations tell which episode they belong to."""

from __future__ import annotations

import socket
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

PLACE = spaces.Box(-1e4, 1e4, (2,), np.float64)
GAMMA = 0.5


class Ledger(gymnasium.Env[Any, Any]):
    """Shows (number of the episode, step within it) and pays the number of the episode.

    Episodes have random numbers, so that no two starts of a script share one. Its socket cannot be
    saved.
    """

    observation_space: spaces.Space[Any] = PLACE
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self) -> None:
        self.line = socket.socket()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode = float(self.np_random.integers(10_000))
        self.time = 0
        return self.look(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.look(), self.episode, self.np_random.random() < 0.05, False, {}

    def look(self) -> Any:
        return np.array([self.episode, self.time], np.float64)

    def close(self) -> None:
        self.line.close()


class GoalLedger(Ledger):
    """The same with a goal, for HerReplayBuffer."""

    observation_space = spaces.Dict(
        {"observation": PLACE, "achieved_goal": PLACE, "desired_goal": PLACE}
    )

    def look(self) -> Any:
        place = super().look()
        return {"observation": place, "achieved_goal": place, "desired_goal": place}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        # Goals are relabelled with places of later steps of the same episode.
        assert (achieved[:, 0] == desired[:, 0]).all(), "a goal from another episode"
        return achieved[:, 0]


def check_batch(batch: Any) -> None:
    """Assert that each sampled row stays within one episode, or ends there."""
    seen, next_seen = batch.observations, batch.next_observations
    if isinstance(seen, dict):
        seen, next_seen = seen["observation"], next_seen["observation"]
    joins = seen[:, 0] != next_seen[:, 0]
    assert (batch.dones[joins] == 1).all(), "a row joins two episodes"
    # The return of n steps is the episode's number as often as there are steps.
    steps = (next_seen[:, 1] - seen[:, 1])[~joins]
    whole = seen[:, 0][~joins] * (1 - GAMMA**steps) / (1 - GAMMA)
    assert np.allclose(batch.rewards[:, 0][~joins], whole)
