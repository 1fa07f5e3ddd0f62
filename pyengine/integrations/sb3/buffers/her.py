"""The stock hindsight replay buffer with its rows in a ring.

Rows are those of a DictReplayBuffer. What the library writes into old rows (the length of an
episode that ended, that of one whose beginning is overwritten) stays in its own arrays, which
Episodes makes anew after a restore. The environment that computes rewards is the script's.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from stable_baselines3 import HerReplayBuffer as StockHerReplayBuffer
from stable_baselines3.common import buffers as stock
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from pyengine.integrations.sb3.buffers.classes import DictReplayBuffer
from pyengine.integrations.sb3.buffers.episodes import Episodes
from pyengine.integrations.sb3.buffers.infos import InfoColumns

Array = NDArray[Any]


class HerReplayBuffer(StockHerReplayBuffer, DictReplayBuffer):
    """stable_baselines3's HerReplayBuffer, rows in a ring."""

    stock_class: ClassVar[type[stock.ReplayBuffer]] = StockHerReplayBuffer
    beside_stock = DictReplayBuffer.beside_stock | {"episodes"}
    episodes: Episodes
    infos: InfoColumns  # type: ignore[assignment]  # stock's is an array of dicts

    def move_in(self) -> None:
        """Replace the arrays, and the million empty dicts, by columns of a new ring."""
        super().move_in()
        self.episodes = Episodes(self.rows, self.ep_start, self.ep_length, self._current_ep_start)
        self.infos = InfoColumns(self.rows)

    def tracked(self) -> dict[str, Any]:
        """Return what a snapshot has of this buffer; the environment is no part of it."""
        found = {**super().tracked(), "replay_episodes": self.episodes}
        return {**found, "replay_infos": self.infos} if self.copy_info_dict else found

    def _stock_state(self) -> dict[str, Any]:
        return {**super()._stock_state(), "infos": np.asarray(self.infos)}

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        make, arguments, state = super().__reduce_ex__(protocol)
        del state["env"]  # as stock: whoever reads it gives another
        return make, arguments, state

    def reset(self) -> None:
        """Empty the buffer; unlike stock's, no episode of before can be sampled then."""
        DictReplayBuffer.reset(self)
        self.episodes.clear()
        self.infos.clear()

    def add(  # type: ignore[override]  # as stock's overrides its base's
        self,
        obs: dict[str, Array],
        next_obs: dict[str, Array],
        action: Array,
        reward: Array,
        done: Array,
        infos: list[dict[str, Any]],
    ) -> None:
        """Append one step of all environments; what stock notes of episodes is noted after it.

        Raises, with the buffer unchanged, what `InfoColumns.flatten` raises.
        """
        step = self.pos
        numbers = self.infos.flatten(infos) if self.copy_info_dict else None
        DictReplayBuffer.add(self, obs, next_obs, action, reward, done, infos)
        if numbers is not None:
            self.infos.append(numbers)
        # The row that lay here was the first one of its episode: the rest can no longer be sampled.
        for lane in np.flatnonzero(self.ep_length[step]):
            rest = np.arange(step, step + self.ep_length[step, lane]) % self.buffer_size
            self.ep_length[rest, lane] = 0
        self.ep_start[step] = self._current_ep_start
        for lane in np.flatnonzero(done):
            self._compute_episode_length(int(lane))

    def _compute_episode_length(self, env_idx: int) -> None:
        rows = (self.pos - self._current_ep_start[env_idx]) % self.buffer_size
        super()._compute_episode_length(env_idx)
        self.episodes.end(env_idx, int(rows))

    def _get_real_samples(
        self, batch_indices: Array, env_indices: Array, env: VecNormalize | None = None
    ) -> DictReplayBufferSamples:
        data = self.rows.gather(self.rows.refs(batch_indices, env_indices), tuple(self.rows.fields))
        return self._batch(data, data["rewards"], env)

    def _get_virtual_samples(
        self, batch_indices: Array, env_indices: Array, env: VecNormalize | None = None
    ) -> DictReplayBufferSamples:
        data = self.rows.gather(self.rows.refs(batch_indices, env_indices), tuple(self.rows.fields))
        goals = self._sample_goals(batch_indices, env_indices)
        has_infos = self.copy_info_dict
        infos: Any = self.infos[batch_indices, env_indices] if has_infos else [{} for _ in goals]
        data["observations/desired_goal"] = goals
        data["next_observations/desired_goal"] = goals.copy()
        assert self.env is not None, "a HerReplayBuffer needs an environment: set_env(env)"
        reached = data["next_observations/achieved_goal"]
        answers = self.env.env_method("compute_reward", reached, goals, infos, indices=[0])
        return self._batch(data, answers[0].astype(np.float32), env)
