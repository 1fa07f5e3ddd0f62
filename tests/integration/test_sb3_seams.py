"""Rows that share observations, with episodes that end where the buffer begins anew.

The next observation of a row is the observation of the row after it. In a full buffer that wraps
around, a restore at any place must not give a row the observation of another lap.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from sb3_pairs import BOX, OVERLAP, Case, Pair, assert_same_batch, make_pair
from stable_baselines3.common.buffers import ReplayBuffer
from test_sb3_replay import resume, save

STEPS = 6
CASE = Case("overlap", ReplayBuffer, BOX, n_envs=2, options=OVERLAP)


class Walk:
    """Two environments whose observations are numbers that never come twice; one is truncated
    after `limit` steps, the other a step later."""

    def __init__(self, limit: int) -> None:
        self._limits = np.array([limit, limit + 1])
        self._count = 0
        self._times = np.zeros(2, int)
        self._seen = self._number()
        self.true_next: dict[tuple[float, ...], Any] = {}
        """The observation after a step, by that before it, unless the step ended the episode."""

    def step(self, pair: Pair) -> None:
        """Give both buffers the next step."""
        following = self._number()
        self._times += 1
        ends = self._times == self._limits
        infos = [{"TimeLimit.truncated": True} if end else {} for end in ends]
        for buffer in (pair.stock, pair.ring):
            buffer.add(self._seen, following, np.zeros((2, 2)), np.zeros(2), ends, infos)
        for lane in np.flatnonzero(~ends):
            self.true_next[tuple(self._seen[lane].tolist())] = following[lane]
        self._times[ends] = 0
        # A vector environment goes on with the first observation of the next episode.
        self._seen = np.where(ends[:, None], self._number(), following)

    def _number(self) -> Any:
        self._count += 1
        return np.stack([np.full(3, self._count), np.full(3, -self._count)]).astype(np.float32)


def check(pair: Pair, walk: Walk) -> None:
    """Compare every row that can be sampled with stock's and with what happened."""
    steps = np.arange(pair.stock.size())
    if pair.stock.full:
        steps = steps[steps != pair.stock.pos]  # stock never samples it
    batches = []
    for buffer in (pair.stock, pair.ring):
        np.random.seed(2)
        batches.append(buffer._get_samples(np.tile(steps, 4)))
    assert_same_batch(*batches)
    batch = batches[1]
    goes_on = batch.dones[:, 0] == 0
    assert goes_on.any() or len(steps) < 2
    for seen, following in zip(
        batch.observations[goes_on], batch.next_observations[goes_on], strict=True
    ):
        expected = walk.true_next[tuple(seen.tolist())]
        assert following.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("limit", [STEPS - 1, STEPS, 2 * STEPS, 4])
@pytest.mark.parametrize("cut", [1, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS - 1, 2 * STEPS, 15])
def test_every_next_observation_is_the_one_that_followed(
    limit: int, cut: int, tmp_path: Path
) -> None:
    pair, walk = make_pair(CASE, STEPS), Walk(limit)
    for _ in range(cut):
        walk.step(pair)
        check(pair, walk)
    save(tmp_path / "run", pair.adoption)
    with resume(tmp_path / "run", pair):
        check(pair, walk)
        for _ in range(2 * STEPS + 1):
            walk.step(pair)
            check(pair, walk)


@pytest.mark.parametrize("cut", [STEPS - 1, STEPS, STEPS + 1, 2 * STEPS])
def test_after_a_reset_no_row_goes_on_into_the_new_episode(cut: int, tmp_path: Path) -> None:
    pair, walk = make_pair(CASE, STEPS), Walk(100)
    for _ in range(cut):
        walk.step(pair)
    save(tmp_path / "run", pair.adoption)
    with resume(tmp_path / "run", pair):
        pair.adoption.close_open_episode()
        pair.stock.dones[pair.stock.pos - 1] = True  # as stock's learn() does it
        anew = Walk(100)
        anew._count = 1000
        anew._seen = anew._number()
        anew.true_next = walk.true_next
        for _ in range(STEPS + 1):
            check(pair, anew)
            anew.step(pair)
