"""Stacks of real environments, and two programs over them: one that saves, one that goes on."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium import spaces, wrappers
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import (
    SubprocVecEnv,
    VecCheckNan,
    VecEnv,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

import pyengine
from pyengine.integrations.gymnasium import StatefulEnv
from pyengine.integrations.sb3.environments import VecEnvState

gymnasium.register_envs(ale_py)

WALL_CLOCK = ("t",)


@dataclass
class Enemy:
    """Part of a world: told apart by its fields."""

    place: tuple[int, int]
    speed: float


class World(gymnasium.Env[Any, Any]):
    """An environment of plain attributes, shared in the ways that programs share them."""

    observation_space = spaces.Box(-100, 100, (12,), np.float64)

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(4)
        self.grid = np.asfortranarray(np.zeros((3, 4)))
        self.row = self.grid[1]
        self.every_other = self.grid.T[::-2]
        self.rng: Any = None
        self.dice = random.Random(3)
        self.enemies: list[Enemy] = []
        self.history: deque[Any] = deque(maxlen=5)
        self.free: set[tuple[int, int]] = set()
        step_size = np.array([0.5])
        self.grow = lambda amount: amount * step_size * len(self.enemies)
        self.act = self.wait

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.rng = self.np_random
        self.grid[:] = self.rng.normal(size=(3, 4))
        self.target = self.enemies = [Enemy((0, i), self.dice.random()) for i in range(3)]
        self.free = {(i, i + 1) for i in range(4)}
        self.act = self.wait
        return self.grid.ravel(order="K").copy(), {"enemies": len(self.enemies)}

    def step(self, action: Any) -> Any:
        self.act(int(action))
        self.row += self.grow(self.rng.normal())
        self.every_other[0] *= 0.9
        self.history.append(float(self.grid.sum()))
        self.target[int(action) % len(self.target)].speed += 1
        self.act = self.move if action else self.wait
        done = bool(self.rng.random() < 0.05)
        observation = self.grid.ravel(order="K").copy()
        return observation, sum(self.history), done, False, {"speed": self.enemies[0].speed}

    def wait(self, action: int) -> None:
        self.grid += self.dice.random()

    def move(self, action: int) -> None:
        self.grid -= action * random.random()
        self.free.discard((action, action + 1))


class Heavier(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Changes a MuJoCo model at each reset, and reads what was computed before a step."""

    def reset(self, **arguments: Any) -> Any:
        model = self.unwrapped.model
        model.body_mass[1] *= self.np_random.uniform(0.9, 1.1)
        model.opt.gravity[2] = self.np_random.uniform(-10, -9)
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        data = self.unwrapped.data
        before = [data.ncon, *data.contact.dist.tolist(), *data.efc_force.tolist()]
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, "before": before}


class Pictures(gymnasium.Env[Any, Any]):
    """Observations with an image and a vector."""

    def __init__(self) -> None:
        image = spaces.Box(0, 255, (36, 36, 3), np.uint8)
        vector = spaces.Box(-10, 10, (3,), np.float32)
        self.observation_space = spaces.Dict({"image": image, "vector": vector})
        self.action_space = spaces.MultiDiscrete([3, 4])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: Any) -> Any:
        done = bool(self.np_random.random() < 0.1)
        return self._look(), float(action.sum()), False, done, {}

    def _look(self) -> Any:
        image = self.np_random.integers(0, 256, (36, 36, 3), dtype=np.uint8)
        return {"image": image, "vector": self.np_random.normal(size=3).astype(np.float32)}


class Sealed(World):
    """State that no attribute shows, given and taken by methods of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = iter(range(10**9))
        self.count = 0

    def step(self, action: Any) -> Any:
        self.count = next(self.hidden)
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward + self.count, terminated, truncated, info

    def get_state(self) -> Any:
        """Return the count and the world, without its own generator: that is no duty of it."""
        names = ("grid", "dice", "enemies", "history", "free")
        state = {name: getattr(self, name) for name in names}
        speeds = [(enemy.place, enemy.speed) for enemy in self.enemies]
        return {**state, "count": self.count, "enemies": speeds, "act": self.act.__name__}

    def set_state(self, state: Any) -> None:
        self.hidden = iter(range(state["count"] + 1, 10**9))
        self.grid[:] = state["grid"]
        self.target = self.enemies = [Enemy(*parts) for parts in state["enemies"]]
        self.dice, self.history, self.free = state["dice"], state["history"], state["free"]
        self.act = getattr(self, state["act"])
        self.rng = self.np_random


def _statistics() -> Any:
    env = wrappers.StickyAction(gymnasium.make("Pendulum-v1"), 0.2)
    env = wrappers.RecordEpisodeStatistics(env)
    return wrappers.NormalizeReward(wrappers.NormalizeObservation(env))


def _preprocessed() -> Any:
    game = wrappers.AtariPreprocessing(gymnasium.make("BreakoutNoFrameskip-v4"))
    return wrappers.FrameStackObservation(game, 4)


def _rescaled(env: Any) -> Any:
    delayed = wrappers.DelayObservation(wrappers.TimeAwareObservation(env), 2)
    return wrappers.RescaleAction(delayed, np.float32(-1), np.float32(1))


def pong() -> VecEnv:
    return VecTransposeImage(VecFrameStack(make_atari_env("PongNoFrameskip-v4", 1, seed=0), 4))


def breakout() -> VecEnv:
    options = {"action_repeat_probability": 0.25}
    games = make_atari_env("BreakoutNoFrameskip-v4", 2, seed=0, wrapper_kwargs=options)
    return VecNormalize(VecTransposeImage(VecFrameStack(games, 4)), norm_obs=False)


def preprocessed() -> VecEnv:
    return make_vec_env(_preprocessed, 2, seed=0)


def cartpole() -> VecEnv:
    return VecNormalize(VecMonitor(VecCheckNan(make_vec_env("CartPole-v1", 3, seed=0))))


def pendulum() -> VecEnv:
    return make_vec_env(_statistics, 2, seed=0)


def mountain_car() -> VecEnv:
    return make_vec_env("MountainCarContinuous-v0", 2, seed=0, wrapper_class=_rescaled)


def halfcheetah() -> VecEnv:
    return VecNormalize(make_vec_env("HalfCheetah-v5", 2, seed=0), gamma=0.98)


def humanoid() -> VecEnv:
    return make_vec_env("Humanoid-v5", 2, seed=0, wrapper_class=Heavier)


def frozenlake() -> VecEnv:
    return make_vec_env("FrozenLake-v1", 2, seed=0)


def taxi() -> VecEnv:
    return make_vec_env("Taxi-v4", 2, seed=0)


def pictures() -> VecEnv:
    stacked = VecFrameStack(make_vec_env(Pictures, 2, seed=0), 3)
    return VecNormalize(VecTransposeImage(stacked), norm_obs_keys=["vector"])


def extracted() -> VecEnv:
    return VecFrameStack(VecExtractDictObs(make_vec_env(Pictures, 2, seed=0), "vector"), 2)


def world() -> VecEnv:
    return make_vec_env(World, 2, seed=0)


def sealed() -> VecEnv:
    return make_vec_env(Sealed, 2, seed=0)


def workers() -> VecEnv:
    def wrap(env: Any) -> Any:
        return StatefulEnv(env)

    return VecNormalize(
        make_vec_env("CartPole-v1", 2, seed=0, wrapper_class=wrap, vec_env_cls=SubprocVecEnv)
    )


def save(send: Callable[..., Any], make: str, run_dir: str, before: int, after: int) -> None:
    """Step, take a snapshot, step on; send a digest of every further step."""
    random.seed(7)
    venv = globals()[make]()
    state = VecEnvState(venv)
    venv.reset()
    _steps(venv, before)
    with pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(environment=state.tracked())
        engine.restore()
        engine.snapshot(before).wait(60)
        send(("saved", _steps(venv, after)))
    venv.close()


def go_on(send: Callable[..., Any], make: str, run_dir: str, after: int, reset_first: bool) -> None:
    """Restore into a stack made anew, and step on."""
    venv = globals()[make]()
    if reset_first:
        venv.reset()
        _steps(venv, 7)
    with pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(environment=VecEnvState(venv).tracked())
        assert engine.restore()
        send(("resumed", _steps(venv, after)))
    venv.close()


def _steps(venv: VecEnv, count: int) -> list[tuple[str, int]]:
    """Return (digest, ended episodes) of `count` steps with actions that the space draws."""
    found = []
    for _ in range(count):
        actions = np.array([venv.action_space.sample() for _ in range(venv.num_envs)])
        observations, rewards, dones, infos = venv.step(actions)
        digest = hashlib.sha256()
        resets = [dict(info) for info in venv.reset_infos]
        for part in (actions, observations, rewards, dones, list(infos), resets):
            _feed(digest, part)
        found.append((digest.hexdigest(), int(np.sum(dones))))
    return found


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        digest.update(f"{value.shape}{value.dtype}".encode() + value.tobytes())
    elif isinstance(value, dict):
        for key in sorted(value):
            if key not in WALL_CLOCK:
                digest.update(repr(key).encode())
                _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            _feed(digest, item)
    else:
        digest.update(f"{type(value).__name__}{value!r}".encode())
