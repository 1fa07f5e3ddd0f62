"""The stock replay buffers with their rows in a ring: same calls, same draws, same batches.

Each class is put under an existing object by `adopt`, so that there are no constructors here. Drawn
from NumPy's global generator in stock's order, a batch equals stock's bit for bit. Pickling and
copying give the stock class with arrays of its own, so that a saved buffer needs no pyengine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common import buffers as stock
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from pyengine.format.schema import Field
from pyengine.integrations.sb3.buffers.columns import StepColumn
from pyengine.integrations.sb3.buffers.rows import BufferRows

Array = NDArray[Any]
_OBSERVATIONS = ("observations", "next_observations")
_OTHERS = ("actions", "rewards", "dones", "timeouts")


class ReplayBuffer(stock.ReplayBuffer):
    """stable_baselines3's ReplayBuffer, rows in a ring."""

    stock_class: ClassVar[type[stock.ReplayBuffer]] = stock.ReplayBuffer
    beside_stock: ClassVar[frozenset[str]] = frozenset({"rows"})
    """Attributes that stock does not have."""
    rows: BufferRows

    def move_in(self) -> None:
        """Replace the arrays, which hold no row yet, by columns of a new ring."""
        fields = {name: Field(a.shape[2:], a.dtype) for name, a in self._arrays().items()}
        self.rows = BufferRows(
            fields, self.buffer_size, self.n_envs, overlaps=self.optimize_memory_usage
        )
        del self.__dict__["pos"], self.__dict__["full"]
        self.__dict__.update(self._with_arrays(lambda name: StepColumn(self.rows, name)))

    def tracked(self) -> dict[str, Any]:
        """Return what a snapshot has of this buffer, by name, in the order of a restore."""
        return {"replay": self.rows.ring, "replay_index": self.rows}

    def move_out(self) -> None:
        """Become the stock class again, with the rows in arrays."""
        state, rows = self._stock_state(), self.rows
        self.__dict__.clear()
        self.__class__ = self.stock_class  # type: ignore[assignment]  # a base class of the same layout
        self.__dict__.update(state)
        rows.close()

    def _arrays(self) -> dict[str, Any]:
        """Return stock's arrays by the name of their field."""
        arrays: dict[str, Any] = {}
        for name in (*_OBSERVATIONS, *_OTHERS):
            held = self.__dict__.get(name)
            if isinstance(held, Mapping):
                arrays.update({f"{name}/{key}": array for key, array in held.items()})
            elif held is not None:
                arrays[name] = held
        return arrays

    def _with_arrays(self, make: Callable[[str], Any]) -> dict[str, Any]:
        """Return what stock calls its arrays, each made from the name of its field."""
        made: dict[str, Any] = {}
        for name in (*_OBSERVATIONS, *_OTHERS):
            held = self.__dict__.get(name)
            if isinstance(held, Mapping):
                made[name] = {key: make(f"{name}/{key}") for key in held}
            elif held is not None:
                made[name] = make(name)
        return made

    def _stock_state(self) -> dict[str, Any]:
        columns = self._arrays()
        state = {k: v for k, v in self.__dict__.items() if k not in self.beside_stock}
        state.update(self._with_arrays(lambda name: np.asarray(columns[name])))
        return {**state, "pos": self.pos, "full": self.full}

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return object.__new__, (self.stock_class,), self._stock_state()

    @property
    def pos(self) -> int:  # type: ignore[override]  # stock's is a variable
        """The step that the next row goes to."""
        return self.rows.pos

    @property
    def full(self) -> bool:  # type: ignore[override]  # stock's is a variable
        """Whether every step holds a row."""
        return self.rows.full

    def reset(self) -> None:
        """Empty the buffer; unlike stock's, its columns read as zeros then."""
        self.rows.clear()

    def add(
        self,
        obs: Array,
        next_obs: Array,
        action: Array,
        reward: Array,
        done: Array,
        infos: list[dict[str, Any]],
    ) -> None:
        """Append one step of all environments, reshaped and cast as stock does."""
        if isinstance(self.observation_space, spaces.Discrete):
            obs = obs.reshape((self.n_envs, *self.obs_shape))
            next_obs = next_obs.reshape((self.n_envs, *self.obs_shape))
        row = {"observations": obs, **self._step(action, reward, done, infos)}
        if self.optimize_memory_usage:
            self.rows.append(row, next_obs)
        else:
            self.rows.append({**row, "next_observations": next_obs})

    def _step(
        self, action: Array, reward: Array, done: Array, infos: list[dict[str, Any]]
    ) -> dict[str, Any]:
        timeouts: Any = 0.0
        if self.handle_timeout_termination:
            timeouts = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        return {
            "actions": action.reshape((self.n_envs, self.action_dim)),
            "rewards": reward,
            "dones": done,
            "timeouts": timeouts,
        }

    def _get_samples(
        self, batch_inds: Array, env: VecNormalize | None = None
    ) -> ReplayBufferSamples:
        env_indices = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))
        rows = self.rows
        refs = rows.refs(batch_inds, env_indices)
        if self.optimize_memory_usage:
            data = rows.gather(refs, ("observations", *_OTHERS))
            rows.put_tail(batch_inds, env_indices, data["observations"])
            data["next_observations"] = rows.next_observations(batch_inds, env_indices)
        else:
            data = rows.gather(refs, (*_OBSERVATIONS, *_OTHERS))
        next_obs = self._normalize_obs(data["next_observations"], env)
        obs = self._normalize_obs(data["observations"], env)
        rewards = self._normalize_reward(data["rewards"].reshape(-1, 1), env)
        return ReplayBufferSamples(
            self._tensor(obs),
            self._tensor(data["actions"]),
            self._tensor(next_obs),
            self._tensor(_final_dones(data)),
            self._tensor(rewards),
        )

    def _tensor(self, array: Any) -> Any:
        # The arrays of a batch are nobody else's.
        return self.to_torch(array, copy=False)


class DictReplayBuffer(ReplayBuffer, stock.DictReplayBuffer):
    """stable_baselines3's DictReplayBuffer, rows in a ring."""

    stock_class: ClassVar[type[stock.ReplayBuffer]] = stock.DictReplayBuffer

    def add(  # type: ignore[override]  # as stock's overrides its base's
        self,
        obs: dict[str, Array],
        next_obs: dict[str, Array],
        action: Array,
        reward: Array,
        done: Array,
        infos: list[dict[str, Any]],
    ) -> None:
        """Append one step of all environments, reshaped and cast as stock does."""
        row = self._step(action, reward, done, infos)
        for name, given in zip(_OBSERVATIONS, (obs, next_obs), strict=True):
            for key in self.observations:
                if isinstance(self.observation_space.spaces[key], spaces.Discrete):
                    # Into the caller's dict, as stock does: the next prediction sees this shape.
                    given[key] = given[key].reshape((self.n_envs, *self.obs_shape[key]))
                row[f"{name}/{key}"] = given[key]
        self.rows.append(row)

    def _get_samples(  # type: ignore[override]  # as stock's overrides its base's
        self, batch_inds: Array, env: VecNormalize | None = None
    ) -> DictReplayBufferSamples:
        env_indices = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))
        data = self.rows.gather(self.rows.refs(batch_inds, env_indices), tuple(self.rows.fields))
        return self._batch(data, data["rewards"], env)

    def _batch(
        self, data: dict[str, Array], rewards: Array, env: VecNormalize | None
    ) -> DictReplayBufferSamples:
        """Return gathered rows, and what they pay, as the library's tuple of tensors."""
        seen = []
        for name in _OBSERVATIONS:
            values = {key: data[f"{name}/{key}"] for key in self.observations}
            normalized: Any = self._normalize_obs(values, env)
            seen.append({key: self._tensor(value) for key, value in normalized.items()})
        paid = self._normalize_reward(rewards.reshape(-1, 1), env)
        return DictReplayBufferSamples(
            observations=seen[0],
            actions=self._tensor(data["actions"]),
            next_observations=seen[1],
            dones=self._tensor(_final_dones(data)),
            rewards=self._tensor(paid),
        )


def _final_dones(data: dict[str, Array]) -> Array:
    """Return dones that are not due to timeouts, as stock computes them."""
    dones: Array = (data["dones"] * (1 - data["timeouts"])).reshape(-1, 1)
    return dones
