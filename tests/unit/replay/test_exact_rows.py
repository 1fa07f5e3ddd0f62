"""Rows that are exactly what the native core takes go in in one look, others as before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine import Field, ReplayBuffer, Schema
from pyengine.errors import ConfigError, RowError

SCHEMA = Schema(
    {
        "obs": {"image": ((2, 3), "uint8"), "speed": "float32"},
        "body": ((17,), "float32"),
        "end": "bool",
        "mark": Field((), "int64", mutable=True, default=7),
    },
    episode_end=("end",),
)
NAMES = tuple(SCHEMA)


def steps_of(count, lanes, random):
    """Values (count, lanes, *shape) of each field, exactly in its dtype."""
    rows = {
        "obs/image": random.integers(0, 255, (count, lanes, 2, 3)).astype(np.uint8),
        "obs/speed": random.random((count, lanes)).astype(np.float32),
        "body": random.random((count, lanes, 17)).astype(np.float32),
        "end": random.random((count, lanes)) < 0.2,
        "mark": random.integers(0, 99, (count, lanes)),
    }
    if random.random() < 0.3:
        del rows["mark"]
    return rows


def contents(ring):
    rows = ring.gather(ring.refs())
    breaks = [ring.breaks(lane).tolist() for lane in range(ring.num_envs)]
    return {name: rows[name].tobytes() for name in NAMES}, rows.indices.tolist(), breaks


def is_exact(ring, rows, *, mask=None, lane=-1):
    return ring.storage.core.append_exact(rows, mask, True, lane) == 0


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 40), st.lists(st.integers(0, 2**16), max_size=6))
def test_blocks_of_steps_give_what_single_steps_do(lanes, per_lane, seeds):
    """With masks, from any state of the lanes, over segment borders and around the ring."""
    capacity = lanes * per_lane
    with (
        ReplayBuffer(SCHEMA, capacity, num_envs=lanes) as ring,
        ReplayBuffer(SCHEMA, capacity, num_envs=lanes) as other,
    ):
        for seed in seeds:
            random = np.random.default_rng(seed)
            count = int(random.integers(1, 2 * per_lane + 2))
            rows = steps_of(count, lanes, random)
            mask = random.random((count, lanes)) < random.random() if seed % 2 else None
            ring.extend(rows, mask=mask)
            for step in range(count):
                one = {name: value[step] for name, value in rows.items()}
                other.add(one, mask=None if mask is None else mask[step])
            assert contents(ring) == contents(other)


def test_one_lane_of_several_is_extended_alone():
    random = np.random.default_rng(3)
    with ReplayBuffer(SCHEMA, 64, num_envs=2) as ring:
        ring.break_episode()
        ring.extend(steps_of(3, 2, random))
        rows = {name: value[:, 0] for name, value in steps_of(5, 1, random).items()}
        assert is_exact(ring, rows, lane=1)
        assert ring.total_count.tolist() == [3, 8]
        ring.extend(rows, lane=1)
        assert ring.total_count.tolist() == [3, 13]
        for lane in (2, -1):
            with pytest.raises(ConfigError):
                ring.extend(rows, lane=lane)
        with pytest.raises(IndexError):
            is_exact(ring, rows, lane=2)


INEXACT = {
    "a dtype": lambda rows: rows.update(body=rows["body"].astype(np.float64)),
    "a shape": lambda rows: rows.update(body=rows["body"][:, :, :16].copy()),
    "steps": lambda rows: rows.update(end=rows["end"][:-1].copy()),
    "lanes": lambda rows: rows.update(end=np.zeros((4, 3), bool)),
    "an axis more": lambda rows: rows.update(end=rows["end"][:, :, None]),
    "no steps": lambda rows: rows.update(end=np.zeros((), bool)),
    "a hole": lambda rows: rows.update(body=np.zeros((4, 2, 34), np.float32)[:, :, ::2]),
    "no array": lambda rows: rows.update(end=[[False] * 2] * 4),
    "a missing field": lambda rows: rows.pop("end"),
    "another field": lambda rows: rows.update(other=np.zeros((4, 2))),
}


@pytest.mark.parametrize("case", INEXACT)
def test_what_is_not_exact_is_looked_at_closer(case):
    random = np.random.default_rng(1)
    with ReplayBuffer(SCHEMA, 64, num_envs=2) as ring:
        ring.extend(steps_of(4, 2, random))
        rows = steps_of(4, 2, random)
        INEXACT[case](rows)
        assert not is_exact(ring, rows)
        assert ring.total_count.tolist() == [4, 4]
        if case in ("a dtype", "a hole", "no array"):
            ring.extend(rows)
            assert ring.total_count.tolist() == [8, 8]
        else:
            with pytest.raises(RowError):
                ring.extend(rows)
            assert ring.total_count.tolist() == [4, 4]


def test_masks_that_are_not_exact_are_looked_at_closer():
    random = np.random.default_rng(1)
    rows = steps_of(4, 2, random)
    with ReplayBuffer(SCHEMA, 64, num_envs=2) as ring:
        ring.extend(rows)
        for mask in (np.ones((3, 2), bool), np.ones((4, 2), np.uint8), np.ones(8, bool)):
            assert not is_exact(ring, rows, mask=mask)
            with pytest.raises(RowError):
                ring.extend(rows, mask=mask)
        mask = np.zeros((2, 4), bool).T
        assert not is_exact(ring, rows, mask=mask)
        ring.extend(rows, mask=mask)
        assert is_exact(ring, rows, mask=np.ascontiguousarray(mask))
        assert ring.total_count.tolist() == [4, 4]
