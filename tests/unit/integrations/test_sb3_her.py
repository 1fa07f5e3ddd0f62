"""Hindsight replay buffers over a ring: rows, episodes, infos and batches are stock's."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from sb3_her_pairs import LANES, STEPS, HerPair, assert_same_buffers, assert_same_infos
from sb3_pairs import assert_same_draws
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

import pyengine
from pyengine.errors import FieldDtypeError, FieldShapeError

INFOS = {"copy_info_dict": True}
each_kind = pytest.mark.parametrize(
    "options",
    [
        {},
        {"goal_selection_strategy": "final", "n_sampled_goal": 1},
        {"goal_selection_strategy": "episode", "handle_timeout_termination": False},
        INFOS,
    ],
    ids=["future", "final", "episode", "infos"],
)


@each_kind
@pytest.mark.parametrize("rows", [3, 7, STEPS - 1, STEPS, STEPS + 1, 3 * STEPS + 5])
def test_batches_and_episodes_are_stocks(options: dict[str, Any], rows: int) -> None:
    pair = HerPair(**options)
    assert pair.adoption.notes == ()
    pair.add(rows)
    assert_same_buffers(pair)
    for _ in range(3):
        pair.add(2)
        assert_same_buffers(pair)


@pytest.mark.parametrize("max_steps", [6, 9, 10, 11, 25, 400])
def test_an_episode_that_is_longer_than_the_buffer_is_noted_as_stock_notes_it(
    max_steps: int,
) -> None:
    pair = HerPair(10, max_steps=max_steps)
    for _ in range(40):
        pair.add(1)
        assert_same_buffers(pair)


@pytest.mark.parametrize("rows", [9, STEPS + 7])
def test_normalized_batches_are_stocks(rows: int) -> None:
    pair = HerPair(**INFOS)
    pair.add(rows)
    keys = ["observation", "achieved_goal", "desired_goal"]
    normalizer = VecNormalize(pair.env, norm_obs_keys=keys)
    for statistics in normalizer.obs_rms.values():
        statistics.update(np.random.default_rng(1).normal(2, 3, (50, *statistics.mean.shape)))
    assert_same_draws(pair.stock, pair.ring, normalizer)


def test_a_batch_stays_what_it_was() -> None:
    pair = HerPair()
    pair.add(STEPS)
    np.random.seed(4)
    batch = pair.ring.sample(16)
    before = {key: value.clone() for key, value in batch.next_observations.items()}
    batch.observations["desired_goal"][:] = -1
    pair.add(STEPS)
    pair.ring.sample(16)
    for key, value in batch.next_observations.items():
        assert value.equal(before[key])


@each_kind
@pytest.mark.parametrize("rows", [0, 9, 2 * STEPS + 3])
def test_pickled_copied_and_released_buffers_are_stock(options: dict[str, Any], rows: int) -> None:
    pair = HerPair(**options)
    pair.add(rows)
    assert b"pyengine" not in pickle.dumps(pair.ring)
    made = [pickle.loads(pickle.dumps(pair.ring)), copy.copy(pair.ring)]
    for buffer in made:
        assert buffer.env is None, "environments are given again"
        buffer.set_env(pair.env)
    ring = pair.adoption.objects["replay"]
    pair.adoption.release()
    with pytest.raises(pyengine.errors.ClosedError):
        ring.sample(1)
    assert pair.ring.env is pair.env
    for buffer in (pair.ring, *made):
        assert type(buffer) is HerReplayBuffer
        assert vars(buffer).keys() == vars(pair.stock).keys()
        pair.ring = buffer
        assert_same_buffers(pair)
    pair.add(5)
    assert_same_buffers(pair)


def test_an_emptied_buffer_samples_no_episode_of_before() -> None:
    pair = HerPair(**INFOS)
    pair.add(STEPS + 2)
    pair.ring.reset()
    with pytest.raises(RuntimeError, match="first episode"):
        pair.ring.sample(4)
    pair.stock = pair.make()
    for _ in range(9):
        pair.add(5)
        assert_same_buffers(pair)


def test_an_open_episode_is_truncated_as_stock_does_it(recwarn: Any) -> None:
    pair = HerPair(**INFOS)
    pair.adoption.close_open_episode()
    pair.add(10)
    pair.adoption.close_open_episode()
    assert not recwarn.list
    with pytest.warns(UserWarning, match="truncated"):
        pair.stock.truncate_last_trajectory()
    assert pair.ring.timeouts[9].any()
    assert_same_buffers(pair)
    pair.add(STEPS)
    assert_same_buffers(pair)


@pytest.mark.parametrize("rows", [3, STEPS + 2])
def test_a_step_that_does_not_fit_leaves_the_buffer_as_it_was(rows: int) -> None:
    pair = HerPair(**INFOS)
    pair.add(rows)
    seen = {key: value[0] for key, value in pair.stock.observations.items()}
    flags = np.zeros(LANES)
    refused = [
        (flags, [{}, {"text": "no number"}], FieldDtypeError, "info 'text': a str"),
        (flags, [{}, {"deep": {"er": [1, 2]}}], FieldDtypeError, "info 'deep/er': a list"),
        (flags, [{1: 2}, {}], FieldDtypeError, "info '1'"),
        (flags, [{}, {"whole": 2**63}], FieldDtypeError, "whole"),
        (flags, [{str(i): i for i in range(300)}, {}], FieldShapeError, "more than 256"),
        (np.zeros(LANES + 1), [{"fine": 1}, {}], ValueError, "broadcast"),
    ]
    for reward, infos, error, text in refused:
        with pytest.raises(error, match=text):
            pair.ring.add(dict(seen), dict(seen), np.zeros(LANES, int), reward, flags, infos)
        assert_same_buffers(pair)


def _listed(found: Any) -> list[Any]:
    return [found] if isinstance(found, dict) else np.asarray(found).reshape(-1).tolist()


def test_infos_come_back_with_their_keys_and_types() -> None:
    pair = HerPair(**INFOS)
    seen = {key: value[0] for key, value in pair.stock.observations.items()}
    flags = np.zeros(LANES)
    table = [
        {"a": 1, "b": 2.5, "c": True, "d": np.float32(0.5)},
        {"a": 1.0, "deep": {"er": {"x": np.arange(3)}, "empty": {}}},
        {},
        {"a": False, "grid": np.ones((2, 2), np.uint8), "zero": np.array(3)},
        {"a": np.bool_(True), "grid": np.ones((3, 2), np.uint8), "none": np.zeros((0, 4))},
    ]
    for number in range(2 * STEPS + 1):
        infos = [copy.deepcopy(table[(number + lane) % len(table)]) for lane in range(LANES)]
        for buffer in (pair.stock, pair.ring):
            buffer.add(dict(seen), dict(seen), np.zeros(LANES, int), flags, flags, infos)
    assert_same_infos(pair.ring.infos, pair.stock.infos)
    theirs = pair.stock.infos
    for index in (0, (3, 1), (-1, 0), slice(2, 5), ([1, 4], [0, 1]), (slice(None), 1)):
        np.testing.assert_equal(*(_listed(infos[index]) for infos in (pair.ring.infos, theirs)))
    one = pair.ring.infos[1, 0]
    one["more"] = 1
    assert "more" not in pair.ring.infos[1, 0]
