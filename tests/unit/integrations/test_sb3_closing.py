"""Once environments were reset, no sampled row joins two episodes."""

from __future__ import annotations

import numpy as np
import pytest
from sb3_pairs import BY_NAME, CASES, STEPS, assert_same_draws, make_pair

each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def _open_step(buffer, number, *, done=False):
    """Add a step whose reward and observations tell its number."""
    lanes = buffer.n_envs
    seen = np.full((lanes, 3), number, np.float32)
    ended = np.full(lanes, done)
    buffer.add(seen, seen + 0.5, np.zeros((lanes, 2)), np.full(lanes, number), ended, [{}] * lanes)


@pytest.mark.parametrize("rows", [4, STEPS, STEPS + 4])
def test_n_step_returns_end_at_the_newest_row(rows):
    pair = make_pair(BY_NAME["n-step"])
    for number in range(rows):
        _open_step(pair.ring, number)
    pair.adoption.close_open_episode()
    for number in range(1000, 1004):
        _open_step(pair.ring, number)
    batch = pair.ring.sample(3000)
    former = batch.observations[:, 0] < 1000
    assert 0 < former.sum() < 3000
    assert (batch.next_observations[former][:, 0] < 1000).all()
    assert (batch.rewards[former] < 1000).all()
    newest = batch.observations[:, 0] == rows - 1
    # Not a terminal: the value of its next observation counts.
    assert (batch.dones[newest] == 0).all()
    assert (batch.next_observations[newest][:, 0] == rows - 0.5).all()
    assert np.allclose(batch.discounts[newest], 0.99)


def test_a_row_that_is_done_stays_a_terminal():
    pair = make_pair(BY_NAME["n-step"])
    for number in range(4):
        _open_step(pair.ring, number, done=number == 3)
    pair.adoption.close_open_episode()
    assert not pair.ring.timeouts[3].any()
    batch = pair.ring.sample(500)
    assert (batch.dones[batch.observations[:, 0] == 3] == 1).all()


@pytest.mark.parametrize("rows", [4, STEPS, STEPS + 4])
def test_the_newest_of_overlapping_rows_becomes_done(rows):
    pair = make_pair(BY_NAME["overlap"])
    for number in range(rows):
        _open_step(pair.ring, number)
    pair.adoption.close_open_episode()
    _open_step(pair.ring, 1000)
    batch = pair.ring.sample(2000)
    joined = (batch.observations[:, 0] < 1000) & (batch.next_observations[:, 0] >= 1000)
    assert 0 < joined.sum() < 2000
    assert (batch.dones[joined] == 1).all()
    assert (batch.dones[~joined] == 0).all()


@each_case
@pytest.mark.parametrize("rows", [0, 5, STEPS, 2 * STEPS + 3])
def test_closing_changes_no_other_row_and_ends_with_the_row(case, rows):
    pair = make_pair(case)
    pair.add(rows)
    for _ in range(2):
        pair.adoption.close_open_episode()
    if rows:
        newest = pair.stock.pos - 1
        if pair.stock.optimize_memory_usage:
            pair.stock.dones[newest] = True
        elif "n-step" in case.name:
            is_open = ~pair.stock.dones[newest].astype(bool)
            pair.stock.timeouts[newest] = is_open | pair.stock.timeouts[newest].astype(bool)
        assert_same_draws(pair.stock, pair.ring)
    pair.add(STEPS // 2)
    assert_same_draws(pair.stock, pair.ring)
    pair.add(STEPS)
    if not pair.stock.handle_timeout_termination:
        # Stock's flag stays in its slot when another row comes to lie there.
        pair.stock.timeouts[:] = 0
    assert_same_draws(pair.stock, pair.ring)
    marks = pair.ring.rows.get_state()["marks"].values()
    assert all(len(mark["refs"]) == 0 for mark in marks)
