"""Pairs of replay buffers that are given the same steps: one stock, one with its rows in a ring."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common import buffers as stock
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from pyengine.integrations.sb3.buffers import Adoption, adopt

STEPS = 12
NO_TIMEOUTS = {"handle_timeout_termination": False}
OVERLAP = {**NO_TIMEOUTS, "optimize_memory_usage": True}

BOX = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (2, 5, 4), np.uint8)
DICT = spaces.Dict({"place": spaces.Discrete(7), "seen": IMAGE, "speed": BOX})
TWO_BOXES = spaces.Dict({"a/b": BOX, "speed": spaces.Box(-9, 9, (2, 2), np.float64)})
PUSH = spaces.Box(-1, 1, (2,), np.float32)


@dataclass(frozen=True)
class Case:
    """What a buffer is made of."""

    name: str
    kind: type[stock.ReplayBuffer]
    seen: spaces.Space[Any]
    acted: spaces.Space[Any] = field(default_factory=lambda: PUSH)
    n_envs: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def make(self, steps: int = STEPS) -> stock.ReplayBuffer:
        """Return a stock buffer of `steps` rows an environment."""
        return self.kind(
            steps * self.n_envs, self.seen, self.acted, "cpu", n_envs=self.n_envs, **self.options
        )


PLAIN = stock.ReplayBuffer
N_STEP = stock.NStepReplayBuffer
CASES = [
    Case("box", PLAIN, BOX),
    Case("box-3-envs", PLAIN, BOX, n_envs=3),
    Case("images", PLAIN, IMAGE, spaces.Discrete(4), 2),
    Case("doubles", PLAIN, spaces.Box(-1, 1, (2, 2), np.float64), spaces.Box(-1, 1, (2,), "f8")),
    Case("discrete", PLAIN, spaces.Discrete(9), spaces.Discrete(3), 3),
    Case("multi-discrete", PLAIN, spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([2, 5]), 2),
    Case("multi-binary", PLAIN, spaces.MultiBinary(5), spaces.MultiBinary(2), 2),
    Case("no-timeouts", PLAIN, BOX, n_envs=2, options=NO_TIMEOUTS),
    Case("overlap", PLAIN, BOX, options=OVERLAP),
    Case("overlap-images", PLAIN, IMAGE, spaces.Discrete(4), 3, OVERLAP),
    Case("dict", stock.DictReplayBuffer, DICT, spaces.Discrete(4), 2),
    Case("dict-of-boxes", stock.DictReplayBuffer, TWO_BOXES, n_envs=3),
    Case("n-step", N_STEP, BOX, n_envs=2),
    Case("n-step-images", N_STEP, IMAGE, spaces.Discrete(4), 1, {"n_steps": 5, "gamma": 0.9}),
    Case("n-step-1", N_STEP, BOX, n_envs=3, options={"n_steps": 1, **NO_TIMEOUTS}),
]
BY_NAME = {case.name: case for case in CASES}


@dataclass
class Pair:
    """A stock buffer and an adopted one."""

    case: Case
    stock: Any
    ring: Any
    adoption: Adoption
    model: SimpleNamespace
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def add(self, count: int) -> None:
        """Give both the same `count` steps."""
        for _ in range(count):
            step = random_step(self.case, self._rng)
            self.stock.add(*copied(step))
            self.ring.add(*copied(step))


def make_pair(case: Case, steps: int = STEPS) -> Pair:
    """Return an empty pair."""
    model = SimpleNamespace(replay_buffer=case.make(steps))
    adoption = adopt(model)
    return Pair(case, case.make(steps), model.replay_buffer, adoption, model)


def random_step(case: Case, rng: np.random.Generator) -> tuple[Any, ...]:
    """Return what a vector environment and an algorithm give to `add`."""
    n_envs = case.n_envs
    infos = [{"TimeLimit.truncated": True} if ended else {} for ended in rng.random(n_envs) < 0.15]
    done = (rng.random(n_envs) < 0.2) | [bool(info) for info in infos]
    reward = rng.normal(size=n_envs).astype(np.float32)
    seen = [_draw(case.seen, n_envs, rng) for _ in range(2)]
    return *seen, _draw(case.acted, n_envs, rng), reward, done, infos


def copied(step: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a step whose dicts may be written to."""
    return tuple(dict(part) if isinstance(part, dict) else part for part in step)


def _draw(space: spaces.Space[Any], n_envs: int, rng: np.random.Generator) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _draw(inner, n_envs, rng) for key, inner in space.spaces.items()}
    space.seed(int(rng.integers(1 << 30)))
    return np.stack([space.sample() for _ in range(n_envs)])


class _Still(gym.Env[Any, Any]):
    """An environment that is only asked for its spaces."""

    def __init__(self, case: Case) -> None:
        self.observation_space = case.seen
        self.action_space = case.acted

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}


def make_normalizer(case: Case) -> VecNormalize:
    """Return a VecNormalize whose statistics are not those it begins with."""
    keys = None
    if isinstance(case.seen, spaces.Dict):
        keys = [key for key, space in case.seen.spaces.items() if isinstance(space, spaces.Box)]
    normalizer = VecNormalize(DummyVecEnv([lambda: _Still(case)] * case.n_envs), norm_obs_keys=keys)
    rng = np.random.default_rng(3)
    statistics: Any = normalizer.obs_rms
    for each in statistics.values() if isinstance(statistics, dict) else [statistics]:
        each.update(rng.normal(2, 3, (50, *each.mean.shape)))
    normalizer.ret_rms.update(rng.normal(1, 4, 50))
    return normalizer


def assert_same_batch(one: Any, other: Any) -> None:
    """Compare two batches: fields, shapes, dtypes and bits."""
    assert type(one) is type(other)
    for name in one._fields:
        _assert_same(getattr(one, name), getattr(other, name), name)


def _assert_same(one: Any, other: Any, name: str) -> None:
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            _assert_same(one[key], other[key], f"{name}/{key}")
    elif one is None:
        assert other is None
    else:
        assert (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device), name
        assert one.numpy().tobytes() == other.numpy().tobytes(), name


def assert_same_draws(one: Any, other: Any, env: Any = None, batch_size: int = 64) -> None:
    """Sample from both with one seed, and compare batches and what the generator gives next."""
    followed = []
    batches = []
    for buffer in (one, other):
        np.random.seed(11)
        batches.append([buffer.sample(batch_size, env=env) for _ in range(3)])
        followed.append(np.random.random())
    for first, second in zip(*batches, strict=True):
        assert_same_batch(first, second)
    assert followed[0] == followed[1]


def arrays_of(buffer: Any) -> dict[str, Any]:
    """Return a buffer's arrays or columns by name."""
    found = {}
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        held = getattr(buffer, name, None)
        if isinstance(held, dict):
            found.update({f"{name}/{key}": array for key, array in held.items()})
        elif held is not None:
            found[name] = held
    return found
