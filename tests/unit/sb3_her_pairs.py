"""Pairs of hindsight buffers under the same steps: one stock, one with its rows in a ring."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces
from sb3_pairs import arrays_of, assert_same_draws, copied
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from pyengine.integrations.sb3.buffers import adopt

LANES = 2
STEPS = 30
EPISODE = 4


class Paid(BitFlippingEnv):
    """Bits whose rewards depend on what the info of a step said, in spaces that are normalised."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        bits = spaces.Box(0, 1, (options["n_bits"],), np.float32)
        keys = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(keys, bits))

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        paid = super().compute_reward(achieved_goal, desired_goal, info)
        if info is None:
            return paid
        bonus = np.array([one.get("number", 0) for one in info], np.float32)
        return paid + bonus


class HerPair:
    """Two buffers of `steps` rows for each of two environments, `options` for both."""

    def __init__(
        self, steps: int = STEPS, *, max_steps: int = EPISODE, seed: int = 1, **options: Any
    ) -> None:
        self.env = DummyVecEnv([lambda: Paid(n_bits=4, max_steps=max_steps)] * LANES)
        self.steps = steps
        self.options = options
        self.stock = self.make()
        self.renew()
        self._given = self._run(seed)

    def make(self, steps: int | None = None) -> HerReplayBuffer:
        """Return a stock buffer."""
        return HerReplayBuffer(
            (steps or self.steps) * LANES, self.env.observation_space, self.env.action_space,
            self.env, "cpu", n_envs=LANES, **self.options,
        )  # fmt: skip

    def renew(self) -> None:
        """Put a fresh adopted buffer in the place of the one that is there."""
        self.model = SimpleNamespace(replay_buffer=self.make())
        self.ring: Any = self.model.replay_buffer
        self.adoption = adopt(self.model)

    def _run(self, seed: int) -> Iterator[tuple[Any, ...]]:
        rng = np.random.default_rng(seed)
        self.env.seed(seed)
        seen: Any = self.env.reset()
        for number in itertools.count():
            action = rng.integers(0, 4, LANES)
            following, reward, done, infos = self.env.step(action)
            for info in infos:
                info["number"] = number
            yield seen, following, action, reward, done, infos
            seen = following

    def add(self, count: int) -> None:
        """Give both the same `count` steps."""
        for step in itertools.islice(self._given, count):
            for buffer in (self.stock, self.ring):
                buffer.add(*copied(step))


def assert_same_buffers(pair: Any) -> None:
    """Compare rows, episodes, infos and draws."""
    assert (pair.ring.pos, pair.ring.full) == (pair.stock.pos, pair.stock.full)
    for name, array in arrays_of(pair.stock).items():
        np.testing.assert_array_equal(np.asarray(arrays_of(pair.ring)[name]), array, name)
    for name in ("ep_start", "ep_length", "_current_ep_start"):
        np.testing.assert_array_equal(getattr(pair.ring, name), getattr(pair.stock, name), name)
    assert_same_infos(pair.ring.infos, pair.stock.infos)
    if pair.stock.ep_length.any():
        assert_same_draws(pair.stock, pair.ring)


def assert_same_infos(ours: Any, theirs: Any) -> None:
    """Compare arrays of dicts: keys, values and the types of values."""
    for one, other in zip(np.asarray(ours).flat, theirs.flat, strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            np.testing.assert_equal(one[key], value)
            assert isinstance(value, type(one[key])), key
