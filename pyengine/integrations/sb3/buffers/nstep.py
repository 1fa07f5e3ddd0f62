"""The stock n-step replay buffer with its rows in a ring.

Stock writes into its `timeouts` while it samples and takes that back afterwards; here the same
batch is computed without writing, so that a snapshot at any moment sees rows as they were added.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common import buffers as stock
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from pyengine.integrations.sb3.buffers.classes import ReplayBuffer

Array = NDArray[Any]


class NStepReplayBuffer(ReplayBuffer, stock.NStepReplayBuffer):
    """stable_baselines3's NStepReplayBuffer, rows in a ring."""

    stock_class = stock.NStepReplayBuffer

    def _get_samples(
        self, batch_inds: Array, env: VecNormalize | None = None
    ) -> ReplayBufferSamples:
        env_indices = np.random.randint(0, self.n_envs, size=batch_inds.shape)
        steps = np.arange(self.n_steps).reshape(1, -1)
        indices = (batch_inds[:, None] + steps) % self.buffer_size
        sequence = self._sequences(indices, env_indices[:, None])
        rewards_seq: Any = self._normalize_reward(sequence["rewards"], env)
        dones_seq, truncated_seq = sequence["dones"], sequence["timeouts"]

        # The return ends with the first row that is done or truncated, that row included.
        ends = np.logical_or(dones_seq, truncated_seq)
        done_idx = np.where(ends.any(axis=1), ends.argmax(axis=1), self.n_steps - 1)
        mask = steps <= done_idx[:, None]
        target_q_discounts = self.gamma ** mask.sum(axis=1, keepdims=True).astype(np.float32)
        discounts = self.gamma ** np.arange(self.n_steps, dtype=np.float32).reshape(1, -1)
        n_step_returns = (rewards_seq * discounts * mask).sum(axis=1, keepdims=True)

        each = np.arange(len(batch_inds))
        last_dones = dones_seq[each, done_idx][:, None].astype(np.float32)
        last_timeouts = truncated_seq[each, done_idx][:, None].astype(np.float32)
        last = self.rows.refs(indices[each, done_idx], env_indices)
        next_obs = self.rows.gather(last, ("next_observations",))["next_observations"]
        refs = self.rows.refs(batch_inds, env_indices)
        first = self.rows.gather(refs, ("observations", "actions"))
        return ReplayBufferSamples(
            observations=self._tensor(self._normalize_obs(first["observations"], env)),
            actions=self._tensor(first["actions"]),
            next_observations=self._tensor(self._normalize_obs(next_obs, env)),
            dones=self._tensor(last_dones * (1.0 - last_timeouts)),
            rewards=self._tensor(n_step_returns),
            discounts=self._tensor(target_q_discounts),
        )

    def _sequences(self, indices: Array, env_indices: Array) -> dict[str, Array]:
        """Return rewards, dones and timeouts at `indices` (batch, n_steps), zero where no row is.

        The newest row reads as truncated unless it is done, so that no return goes on from it into
        the oldest row. Stock writes that into its array for the time of the sampling.
        """
        lanes = np.broadcast_to(env_indices, indices.shape)
        written = None if self.full else indices < self.pos
        # Without a row, the first one is read instead and blotted out.
        steps = indices if written is None else np.where(written, indices, 0)
        sequence = self.rows.gather(self.rows.refs(steps, lanes), ("rewards", "dones", "timeouts"))
        if written is not None:
            for values in sequence.values():
                values[~written] = 0
        newest = indices == (self.pos - 1) % self.buffer_size
        timeouts, dones = sequence["timeouts"], sequence["dones"]
        timeouts[newest] = np.logical_or(timeouts[newest], np.logical_not(dones[newest]))
        return sequence
