"""Learners as scripts have them: SAC on vectors, DQN on stacks of frames, a large regression.

`learn` makes one update from the columns of a batch. Contents are noise, so that no episode ends
and nobody looks at a loss: what counts is that an update costs what it costs in training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import STACKED_FRAMES, VECTORS, Columns, Rows

DISCOUNT = 0.99
POLYAK = 0.005


class Learner(ABC):
    """Networks and their optimizers, by the names under which they are saved."""

    batch_size: int

    def __init__(self, **parts: Any) -> None:
        self.parts: dict[str, Any] = parts

    @abstractmethod
    def act(self, obs: np.ndarray) -> None:
        """Choose an action for one observation (with a leading axis of 1)."""

    @abstractmethod
    def learn(self, columns: Columns) -> None:
        """Learn from one batch of rows."""

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


class Sac(Learner):
    """Soft actor-critic (Haarnoja et al. 2018) with two critics and a tuned temperature."""

    batch_size = 256
    width = 256

    def __init__(self, rows: Rows = VECTORS) -> None:
        obs, action = _sizes(rows)
        self._actor = _mlp(obs, self.width, 2 * action)
        self._critics = nn.ModuleList(_mlp(obs + action, self.width, 1) for _ in range(2))
        self._targets = deepcopy(self._critics)
        self._temperature = nn.ParameterDict({"log_alpha": torch.zeros(1)})
        self._entropy = -float(action)
        self._optimizers = [
            torch.optim.Adam(part.parameters(), lr=3e-4)
            for part in (self._actor, self._critics, self._temperature)
        ]
        super().__init__(
            actor=self._actor,
            critics=self._critics,
            targets=self._targets,
            temperature=self._temperature,
            actor_optimizer=self._optimizers[0],
            critics_optimizer=self._optimizers[1],
            temperature_optimizer=self._optimizers[2],
        )

    @torch.no_grad()
    def act(self, obs: np.ndarray) -> None:
        self._sample(torch.from_numpy(obs))[0].numpy()

    def learn(self, columns: Columns) -> None:
        obs, action = torch.from_numpy(columns["obs"]), torch.from_numpy(columns["action"])
        next_obs = torch.from_numpy(columns["next_obs"])
        reward = torch.from_numpy(columns["reward"].reshape(-1, 1))
        for_actor, for_critics, for_temperature = self._optimizers
        alpha = self._temperature["log_alpha"].detach().exp()
        with torch.no_grad():
            next_action, log_p = self._sample(next_obs)
            following = _least(self._targets, next_obs, next_action) - alpha * log_p
            wanted = 1e-4 * reward + DISCOUNT * following
        both = torch.cat((obs, action), 1)
        loss = sum(functional.mse_loss(critic(both), wanted) for critic in self._critics)
        _step(for_critics, loss)
        new_action, log_p = self._sample(obs)
        _step(for_actor, (alpha * log_p - _least(self._critics, obs, new_action)).mean())
        log_alpha = self._temperature["log_alpha"]
        _step(for_temperature, -(log_alpha * (log_p.detach() + self._entropy)).mean())
        with torch.no_grad():
            for target, source in zip(
                self._targets.parameters(), self._critics.parameters(), strict=True
            ):
                target.lerp_(source, POLYAK)

    def _sample(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return squashed actions and their log-probabilities (appendix C of the paper)."""
        mean, log_std = self._actor(obs).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = normal.rsample()
        action = raw.tanh()
        log_p = (normal.log_prob(raw) - (1 - action.square() + 1e-6).log()).sum(1, keepdim=True)
        return action, log_p


class Dqn(Learner):
    """DQN (Mnih et al. 2015): its convolutions, a batch of 32."""

    batch_size = 32
    actions = 18

    def __init__(self, rows: Rows = STACKED_FRAMES) -> None:
        self._network = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
            nn.Linear(512, self.actions),
        )  # fmt: skip
        self._target = deepcopy(self._network)
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=1e-4)
        super().__init__(network=self._network, target=self._target, optimizer=self._optimizer)

    @torch.no_grad()
    def act(self, obs: np.ndarray) -> None:
        self._network(_pixels(obs)).argmax().item()

    def learn(self, columns: Columns) -> None:
        obs = _pixels(columns["obs"])
        next_obs = _pixels(columns.get("next_obs", columns["obs"]))
        action = torch.from_numpy(columns["action"].astype(np.int64).reshape(-1, 1))
        reward = torch.from_numpy(columns["reward"].reshape(-1, 1))
        with torch.no_grad():
            following = self._target(next_obs).max(1, keepdim=True).values
            wanted = 1e-4 * reward + DISCOUNT * following
        value = self._network(obs).gather(1, action)
        _step(self._optimizer, functional.smooth_l1_loss(value, wanted))


class Regression:
    """One step of fitting noise, for a model that is there already."""

    batch_size = 64

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        width = next(model.parameters()).shape[1]
        self._inputs = torch.randn(self.batch_size, width)

    def learn(self) -> None:
        _step(self._optimizer, self._model(self._inputs).square().mean())


def _step(optimizer: torch.optim.Optimizer, loss: Any) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _least(critics: nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    both = torch.cat((obs, action), 1)
    return torch.min(*(critic(both) for critic in critics))


def _pixels(obs: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(obs).float().div_(255)


def _mlp(inputs: int, width: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, outputs),
    )  # fmt: skip


def _sizes(rows: Rows) -> tuple[int, int]:
    shapes = {name: shape for name, shape, _ in rows.fields}
    return shapes["obs"][0], shapes["action"][0]
