"""PrioritizedReplayBuffer against the slow reference, bit for bit, whatever happens to the ring."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_priorities import ReferencePriorities, check_tree, some_priorities
from saved_rings import save

from pyengine import PrioritizedReplayBuffer
from pyengine.format.schema import PRIORITY_FIELD

FIELDS = {"id": "int64", "end": "bool"}


def new_ring(capacity, lanes, options, **others):
    return PrioritizedReplayBuffer(FIELDS, capacity, num_envs=lanes, seed=1, **options, **others)


def act(ring, reference, action, random):
    lanes, per_lane = len(reference.lanes), reference.rows_per_lane
    steps = int(random.integers(0, 2 * per_lane + 3))
    if action in ("add", "given"):
        mask = random.random(lanes) < 0.7 if random.random() < 0.5 else np.ones(lanes, bool)
        priority = some_priorities(random, lanes) if action == "given" else None
        ring.add(id=np.zeros(lanes, int), end=np.zeros(lanes, bool), mask=mask, priority=priority)
        for lane in np.flatnonzero(mask):
            reference.add(lane, None if priority is None else priority[lane])
    elif action == "extend":
        mask = random.random((steps, lanes)) < 0.7 if random.random() < 0.5 else None
        priority = some_priorities(random, (steps, lanes)) if random.random() < 0.5 else None
        rows = {"id": np.zeros((steps, lanes), int), "end": np.zeros((steps, lanes), bool)}
        ring.extend(rows, mask=mask, priority=priority)
        # A lane whose rows come in one piece is filled at once, others step by step: the highest
        # priority of rows that are given theirs does not depend on it.
        for step in range(steps):
            for lane in range(lanes):
                if mask is None or mask[step, lane]:
                    reference.add(lane, None if priority is None else priority[step, lane])
    elif action == "lane":
        lane = int(random.integers(lanes))
        ring.extend(id=np.zeros(steps, int), end=np.zeros(steps, bool), lane=lane)
        for _ in range(steps):
            reference.add(lane)
    elif action in ("update", "field"):
        known = [i * lanes + lane for lane in range(lanes) for i in range(reference.totals[lane])]
        refs = random.choice(known, random.integers(0, 700)) if known else np.empty(0, np.int64)
        values = some_priorities(random, len(refs))
        if action == "update":
            lost = ring.update_priorities(refs, values)
            stored = [reference.store(value) for value in values]
        else:
            stored = values.astype(np.float32)
            lost = ring.update(refs, **{PRIORITY_FIELD: stored})
        assert lost == reference.set(refs, stored)
    elif action == "assign" and len(ring):
        # Positions without a row may be assigned to as well: it means nothing there.
        places = random.integers(0, ring.capacity, random.integers(1, 9))
        values = some_priorities(random, len(places)).astype(np.float32)
        ring.column(PRIORITY_FIELD)[places] = values
        by_position = reference.refs()
        for place, value in zip(places.tolist(), values.tolist(), strict=True):
            reference.highest = max(reference.highest, value)
            if place in by_position:
                reference.set([by_position[place]], [value])
    elif action == "drop" and ring.storage is not None:
        lane = int(random.integers(lanes))
        rows = reference.lanes[lane]
        first, count = int(random.integers(0, reference.totals[lane] + 1)), int(random.integers(9))
        ring.storage.core.drop_rows(lane, first, count)
        for number in range(first, first + count):
            if number in rows:
                rows[number] = None


def keep_newest(reference, rows):
    """What `replay_last` does: so many rows over all lanes."""
    for lane, total in zip(reference.lanes, reference.totals, strict=True):
        for number in [n for n in lane if n < total - rows // len(reference.lanes)]:
            del lane[number]


def check(ring, reference, random):
    if ring.storage is None:
        return
    leaves = reference.leaves()
    check_tree(ring, leaves)
    assert ring.max_priority == reference.highest
    assert ring.draw_count == reference.draws
    if not any(leaves):
        return
    beta = float(random.choice([0, 0.4, 1, random.random()]))
    for count in (1, 7, 300):
        batch = ring.sample(count, beta)
        refs, weights = reference.sample(count, beta)
        assert batch.indices.tolist() == refs
        assert batch.weights.dtype == np.float32
        assert batch.weights.tolist() == [float(weight) for weight in weights]
        assert np.isin(refs, ring.refs()).all()


OPTIONS = st.fixed_dictionaries(
    {
        "alpha": st.sampled_from([0.0, 0.6, 1.0]),
        "epsilon": st.sampled_from([0.0, 1e-6, 0.5]),
        "stratified": st.booleans(),
        "normalize": st.sampled_from(["buffer", "batch"]),
    }
)
ACTION = st.sampled_from(
    ["add", "add", "given", "extend", "lane", "update", "update", "field", "assign", "drop"]
)
ACTIONS = st.lists(st.tuples(ACTION, st.booleans(), st.integers(0, 2**16)), max_size=20)


@settings(max_examples=120)
@given(st.integers(1, 4), st.integers(1, 40), OPTIONS, ACTIONS)
def test_any_history_draws_what_the_reference_draws(lanes, per_lane, options, actions):
    reference = ReferencePriorities(lanes * per_lane, lanes, **options)
    with new_ring(lanes * per_lane, lanes, options) as ring:
        for action, looks, seed in actions:
            random = np.random.default_rng(seed)
            act(ring, reference, action, random)
            if looks:
                check(ring, reference, random)
        check(ring, reference, np.random.default_rng(0))


@settings(max_examples=40)
@given(st.integers(1, 3), st.integers(1, 40), OPTIONS, ACTIONS, st.booleans(), st.data())
def test_a_restored_ring_goes_on_in_the_same_bits(
    tmp_path_factory, lanes, per_lane, options, actions, is_whole, data
):
    reference = ReferencePriorities(lanes * per_lane, lanes, **options)
    directory = tmp_path_factory.mktemp("saved")
    with new_ring(lanes * per_lane, lanes, options) as ring:
        for action, looks, seed in actions:
            random = np.random.default_rng(seed)
            act(ring, reference, action, random)
            if looks:
                check(ring, reference, random)
        if ring.storage is None:
            return  # nothing was added: there is nothing to save
        last = None if is_whole else data.draw(st.integers(0, 50))
        if last is not None:
            keep_newest(reference, last)
        reference.alpha = data.draw(st.sampled_from([options["alpha"], 0.3]))
        changed = {**options, "alpha": reference.alpha}
        with new_ring(lanes * per_lane, lanes, changed) as other:
            save(ring, directory).install(other, replay_last=last)
            if is_whole and changed == options:
                assert other.storage.core.priority_tree() == ring.storage.core.priority_tree()
            check(other, reference, np.random.default_rng(0))
            for action, _, seed in actions[:4]:
                act(other, reference, action, np.random.default_rng(seed))
                check(other, reference, np.random.default_rng(1))
