"""Batches of adopted replay buffers are stock's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from sb3_pairs import (
    BY_NAME,
    CASES,
    STEPS,
    assert_same_batch,
    assert_same_draws,
    copied,
    make_normalizer,
    make_pair,
    random_step,
)

each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
normalized = [case for case in CASES if case.name not in ("discrete", "multi-discrete")]
normalized = [case for case in normalized if case.name != "multi-binary"]


@each_case
@pytest.mark.parametrize("rows", [2, STEPS - 1, STEPS, STEPS + 1, 3 * STEPS + 5])
def test_batches_are_stocks(case, rows):
    pair = make_pair(case)
    pair.add(rows)
    assert (pair.ring.pos, pair.ring.full) == (pair.stock.pos, pair.stock.full)
    assert pair.ring.size() == pair.stock.size()
    assert_same_draws(pair.stock, pair.ring)


@pytest.mark.parametrize("case", normalized, ids=[case.name for case in normalized])
@pytest.mark.parametrize("rows", [5, STEPS + 4])
def test_normalized_batches_are_stocks(case, rows):
    pair = make_pair(case)
    pair.add(rows)
    env = make_normalizer(case)
    assert_same_draws(pair.stock, pair.ring, env)
    env.norm_obs = False
    assert_same_draws(pair.stock, pair.ring, env)
    env.norm_reward = False
    assert_same_draws(pair.stock, pair.ring, env)


@each_case
def test_batches_stay_what_they_were_while_rows_and_batches_follow(case):
    pair = make_pair(case)
    pair.add(STEPS)
    np.random.seed(5)
    former = pair.ring.sample(16)
    np.random.seed(5)
    expected = pair.stock.sample(16)
    pair.add(STEPS)
    pair.ring.sample(16)
    assert_same_batch(expected, former)


def test_sampling_leaves_the_columns_of_n_step_rows_alone():
    pair = make_pair(BY_NAME["n-step"])
    pair.add(STEPS + 3)
    before = np.asarray(pair.ring.timeouts)
    pair.ring.sample(64)
    np.testing.assert_array_equal(np.asarray(pair.ring.timeouts), before)


def test_returns_of_rows_that_are_not_full_ignore_what_lies_beyond():
    # Infinite rewards times a mask of 0 would be nan: rows that are not there have to be zero.
    pair = make_pair(BY_NAME["n-step"])
    for buffer in (pair.stock, pair.ring):
        rng = np.random.default_rng(1)
        for _ in range(2):
            step = list(random_step(pair.case, rng))
            step[3], step[4] = np.full(2, -np.inf, np.float32), np.zeros(2, bool)
            buffer.add(*step)
    assert_same_draws(pair.stock, pair.ring)


@each_case
def test_rows_given_in_other_forms_are_cast_as_stock_casts_them(case):
    pair = make_pair(case)
    rng = np.random.default_rng(2)
    for _ in range(5):
        seen, following, action, reward, done, infos = random_step(case, rng)
        if not isinstance(seen, dict):
            seen, following = seen.astype(np.float64), np.asfortranarray(following)
        step = (
            *(seen, following, action.astype(np.float64), reward.astype(np.float64) * 3),
            *(done.astype(np.int64), infos),
        )
        pair.stock.add(*copied(step))
        pair.ring.add(*copied(step))
    assert_same_draws(pair.stock, pair.ring)


def test_values_of_one_environment_are_broadcast_as_stock_does():
    pair = make_pair(BY_NAME["box-3-envs"])
    seen = np.array([0.5, -0.5, 0.25], np.float32)
    for buffer in (pair.stock, pair.ring):
        buffer.add(seen, seen[None] * 2, np.ones((3, 2)), np.float32(0.5), False, [{}, {}, {}])
    assert_same_draws(pair.stock, pair.ring)


@each_case
def test_a_step_that_does_not_fit_leaves_the_buffer_as_it_was(case):
    pair = make_pair(case)
    pair.add(4)
    step = list(random_step(case, np.random.default_rng(3)))
    step[3] = np.zeros(case.n_envs + 1, np.float32)
    with pytest.raises(ValueError, match="broadcast"):
        pair.ring.add(*copied(tuple(step)))
    assert pair.ring.pos == 4
    assert_same_draws(pair.stock, pair.ring)


def test_discrete_observations_in_a_dict_are_reshaped_in_the_callers_dict():
    pair = make_pair(BY_NAME["dict"])
    step = random_step(pair.case, np.random.default_rng(4))
    stocks, rings = copied(step), copied(step)
    pair.stock.add(*stocks)
    pair.ring.add(*rings)
    for ours, theirs in zip(rings[:2], stocks[:2], strict=True):
        assert ours["place"].shape == theirs["place"].shape == (2, 1)


def test_extend_adds_steps_one_by_one():
    pair = make_pair(BY_NAME["box-3-envs"])
    rng = np.random.default_rng(6)
    steps = [random_step(pair.case, rng) for _ in range(STEPS + 2)]
    for buffer in (pair.stock, pair.ring):
        buffer.extend(*zip(*steps, strict=True))
    assert pair.ring.full
    assert_same_draws(pair.stock, pair.ring)


@each_case
def test_an_emptied_buffer_fills_again(case):
    pair = make_pair(case)
    for rows in (5, STEPS + 3, 2 * STEPS + 1):
        pair.add(rows)
        pair.stock.reset()
        pair.ring.reset()
        assert (pair.ring.pos, pair.ring.full, pair.ring.size()) == (0, False, 0)
        for more in (3, STEPS - 3, 4):
            pair.add(more)
            assert (pair.ring.pos, pair.ring.full) == (pair.stock.pos, pair.stock.full)
            assert_same_draws(pair.stock, pair.ring)


def test_an_empty_buffer_refuses_to_be_sampled_as_stock_does():
    pair = make_pair(BY_NAME["box"])
    for buffer in (pair.stock, pair.ring):
        with pytest.raises(ValueError, match="high <= 0"):
            buffer.sample(4)
