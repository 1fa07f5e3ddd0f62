"""ReplayBuffer against a slow reference: one deque a lane, nothing shared, nothing native."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine import Field, ReplayBuffer, Schema
from pyengine.errors import EmptyRingError, UnknownRefError

SCHEMA = Schema(
    {
        "obs": ((3,), "int32"),
        "end": "bool",
        "priority": Field((), "float64", mutable=True, default=0.5),
    },
    episode_end=("end",),
)


class ReferenceRing:
    """What a ring means: per lane the last N rows, their ids and their starts."""

    def __init__(self, capacity, lanes):
        self.rows_per_lane = capacity // lanes
        self.lanes = [deque(maxlen=self.rows_per_lane) for _ in range(lanes)]
        self.totals = [0] * lanes
        self.breaks = [True] * lanes
        self.lost = 0

    def add(self, lane, obs, end, priority=0.5):
        row = {"obs": obs, "end": end, "priority": priority, "start": self.breaks[lane]}
        self.lanes[lane].append(row)
        self.totals[lane] += 1
        self.breaks[lane] = end

    def tail(self, lane):
        return self.totals[lane] - len(self.lanes[lane])

    def rows(self):
        """{ref: row}, oldest row id first."""
        found = {}
        for lane, rows in enumerate(self.lanes):
            for i, row in enumerate(rows):
                found[(self.tail(lane) + i) * len(self.lanes) + lane] = row
        return dict(sorted(found.items()))

    def position(self, ref):
        row_id, lane = divmod(ref, len(self.lanes))
        return lane * self.rows_per_lane + row_id % self.rows_per_lane


def check(ring, reference):
    rows = reference.rows()
    lanes = len(reference.lanes)
    assert len(ring) == len(rows)
    assert np.atleast_1d(ring.total_count).tolist() == reference.totals
    assert np.atleast_1d(ring.tail).tolist() == [reference.tail(i) for i in range(lanes)]
    heads = [total % reference.rows_per_lane for total in reference.totals]
    assert np.atleast_1d(ring.head).tolist() == heads
    assert ring.refs().tolist() == list(rows)
    for lane in range(lanes):
        starts = [ref // lanes for ref, row in rows.items() if ref % lanes == lane and row["start"]]
        assert ring.breaks(lane).tolist() == starts
    assert ring.lost_updates == reference.lost
    columns = {name: np.zeros((ring.capacity, *f.shape), f.dtype) for name, f in SCHEMA.items()}
    for ref, row in rows.items():
        for name in columns:
            columns[name][reference.position(ref)] = row[name]
    for name, expected in columns.items():
        np.testing.assert_array_equal(np.asarray(ring.column(name)), expected, strict=True)
    if not rows:
        with pytest.raises(EmptyRingError):
            ring.sample(1)
        return
    batch = ring.gather(list(rows))
    for name in columns:
        assert batch[name].tolist() == [np.asarray(row[name]).tolist() for row in rows.values()], (
            name
        )
    positions = [reference.position(ref) for ref in rows]
    assert ring.refs_at(positions).tolist() == list(rows)
    drawn = ring.sample(5)
    for i, ref in enumerate(drawn.indices.tolist()):
        assert drawn["obs"][i].tolist() == list(rows[ref]["obs"])
        assert drawn["priority"][i] == rows[ref]["priority"]


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "masked", "extend", "lane", "break", "update"]),
        st.integers(0, 2**16),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 20), ACTIONS)
def test_any_history_gives_the_rows_of_the_reference(lanes, per_lane, actions):
    reference = ReferenceRing(lanes * per_lane, lanes)
    with ReplayBuffer(SCHEMA, lanes * per_lane, num_envs=lanes, seed=1) as ring:
        for action, seed in actions:
            act(ring, reference, action, np.random.default_rng(seed))
        check(ring, reference)


def act(ring, reference, action, random):
    lanes = len(reference.lanes)
    steps = int(random.integers(0, 2 * reference.rows_per_lane + 3))
    if action in ("add", "masked"):
        obs = random.integers(-99, 99, (lanes, 3)).astype(np.int32)
        end = random.random(lanes) < 0.3
        mask = random.random(lanes) < 0.6 if action == "masked" else None
        ring.add(obs=obs, end=end, mask=mask)
        for lane in range(lanes):
            if mask is None or mask[lane]:
                reference.add(lane, obs[lane].tolist(), bool(end[lane]))
    elif action == "extend":
        obs = random.integers(-99, 99, (steps, lanes, 3))
        end = random.random((steps, lanes)) < 0.3
        priority = random.random((steps, lanes))
        mask = random.random((steps, lanes)) < 0.7 if random.random() < 0.5 else None
        ring.extend({"obs": obs, "end": end}, priority=priority, mask=mask)
        for step in range(steps):
            for lane in range(lanes):
                if mask is None or mask[step, lane]:
                    values = obs[step, lane].tolist(), bool(end[step, lane])
                    reference.add(lane, *values, priority[step, lane])
    elif action == "lane":
        lane = int(random.integers(lanes))
        obs, end = random.integers(-99, 99, (steps, 3)), random.random(steps) < 0.3
        ring.extend(obs=obs, end=end, lane=lane)
        for step in range(steps):
            reference.add(lane, obs[step].tolist(), bool(end[step]))
    elif action == "break":
        lane = int(random.integers(-1, lanes))
        ring.break_episode(None if lane < 0 else lane)
        for index in range(lanes) if lane < 0 else (lane,):
            reference.breaks[index] = True
    else:
        update(ring, reference, random)


def update(ring, reference, random):
    lanes = len(reference.lanes)
    known = [id_ * lanes + lane for lane in range(lanes) for id_ in range(reference.totals[lane])]
    refs = random.permutation(np.asarray(known, np.int64))[: random.integers(0, 8)]
    values = random.random(len(refs))
    rows = reference.rows()
    lost = sum(ref not in rows for ref in refs.tolist())
    assert ring.update(refs, priority=values) == lost
    reference.lost += lost
    for ref, value in zip(refs.tolist(), values.tolist(), strict=True):
        if ref in rows:
            rows[ref]["priority"] = value


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 8, 64, 100])
def test_capacity_is_exact(capacity):
    with ReplayBuffer(SCHEMA, capacity) as ring:
        for i in range(3 * capacity):
            ring.add(obs=[i, i, i], end=False)
            assert len(ring) == min(i + 1, capacity)
        assert ring.column("obs")[:, 0].tolist() == [
            2 * capacity + position for position in range(capacity)
        ]
        for ref in (2 * capacity - 1, 3 * capacity, -1):
            with pytest.raises(UnknownRefError):
                ring.gather([ref])


def test_a_wrapped_ring_keeps_the_newest_rows_in_order():
    with ReplayBuffer({"id": "int64"}, 1000) as ring:
        for begin in range(0, 25_000, 130):
            ring.extend(id=np.arange(begin, begin + 130))
        total = ring.total_count
        assert ring.tail == total - 1000
        assert ring.gather(ring.refs())["id"].tolist() == list(range(total - 1000, total))
