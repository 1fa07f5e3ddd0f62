"""Stacks and returns of rows drawn by priority: against both slow references at once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_priorities import ReferencePriorities, check_tree, some_priorities
from saved_rings import save
from span_reference import LAST, NAMES, SCHEMA, Player, Reference, n_step_return

from pyengine import Batch, PrioritizedReplayBuffer, ReplayBuffer
from pyengine.errors import BrokenStackError, EmptyRingError, PriorityError
from pyengine.format.buffer_header import BufferHeader
from pyengine.format.schema import PRIORITY_FIELD


class PrioritizedReference(Reference):
    """A ring of whole stacks beside the priorities of its rows; None: it is no valid row."""

    def __init__(self, lanes: int, per_lane: int, **options) -> None:
        super().__init__(lanes, per_lane)
        self.priorities = ReferencePriorities(lanes * per_lane, lanes, **options)

    def add(self, index, values):
        super().add(index, values)
        priorities, stored = self.priorities, self.priorities.lanes[index]
        rows = len(self.lanes[index].rows)
        while priorities.totals[index] < rows - 1:
            priorities.add(index, 0.0)
            stored[priorities.totals[index] - 1] = None  # an opening row
        priorities.add(index, values["given"])

    def settle(self):
        """Forget the priorities of what is no valid row any more."""
        for lane, stored in zip(self.lanes, self.priorities.lanes, strict=True):
            for row in stored:
                if not lane.is_valid(row):
                    stored[row] = None


class PrioritizedPlayer(Player):
    """Gives its rows priorities where `gives`."""

    gives = False

    def step(self, lane, random):
        values = super().step(lane, random)
        values["given"] = float(some_priorities(random, ())) if self.gives else None
        return values

    def columns(self, rows):
        columns = super().columns(rows)
        if self.gives and rows:
            columns["priority"] = np.array([[values["given"] for values in row] for row in rows])
        return columns


def new_ring(reference, options):
    lanes = len(reference.lanes)
    return PrioritizedReplayBuffer(
        SCHEMA, lanes * reference.lanes[0].capacity, num_envs=lanes, seed=1, **options
    )


def act(player, action, random, directory, options):
    ring, reference = player.ring, player.reference
    lanes = len(reference.lanes)
    lane = int(random.integers(lanes))
    player.gives = bool(random.random() < 0.5)
    if action in ("add", "masked"):
        player.add(random, masked=action == "masked")
    elif action in ("extend", "lane"):
        player.extend(random, lane if action == "lane" else None)
    elif action == "break":
        ring.break_episode(lane)
        reference.lanes[lane].pending = True
    elif ring.storage is None:
        return
    elif action == "drop":
        first = int(random.integers(0, len(reference.lanes[lane].rows) + 1))
        count = int(random.integers(1, 4))
        ring.storage.core.drop_rows(lane, first, count)
        reference.drop(lane, first, count)
    elif action == "update":
        change(ring, reference, random)
    elif action == "assign":
        assign(ring, reference, random)
    elif action == "restore":
        kept = int(random.integers(0, 40)) * lanes if random.random() < 0.3 else None
        keep = bool(random.random() < 0.5)
        player.ring = new_ring(reference, options)
        save(ring, directory).install(
            player.ring, keep_breaks=keep, replay_last=kept, eager=bool(random.random() < 0.5)
        )
        ring.close()
        reference.restore(keep_breaks=keep, replay_last=kept)


def change(ring, reference, random):
    """New priorities for rows of any kind: valid ones, opening ones, and what has left."""
    lanes = len(reference.lanes)
    known = [
        row * lanes + index
        for index, lane in enumerate(reference.lanes)
        for row in range(len(lane.rows))
    ]
    if not known:
        return
    refs = random.choice(known, random.integers(1, 60))
    values = some_priorities(random, len(refs))
    reference.settle()
    stored = [reference.priorities.store(value) for value in values]
    assert ring.update_priorities(refs, values) == reference.priorities.set(refs, stored)


def assign(ring, reference, random):
    """Opening rows may be assigned to as well, and rows without frames: it means nothing there."""
    priorities = reference.priorities
    places = random.integers(0, ring.capacity, random.integers(1, 9))
    values = some_priorities(random, len(places)).astype(np.float32)
    ring.column(PRIORITY_FIELD)[places] = values
    reference.settle()
    by_position = priorities.refs()
    for place, value in zip(places.tolist(), values.tolist(), strict=True):
        priorities.highest = max(priorities.highest, value)
        if place in by_position:
            priorities.set([by_position[place]], [value])


def check(ring, reference):
    if ring.storage is None:
        return
    reference.settle()
    priorities = reference.priorities
    leaves = priorities.leaves()
    check_tree(ring, leaves)
    assert ring.refs().tolist() == reference.refs()
    assert sorted(priorities.refs().values()) == reference.refs()
    assert (ring.max_priority, ring.draw_count) == (priorities.highest, priorities.draws)
    if not any(leaves):
        for spans in ({}, {"n_step": 2, "gamma": 0.5}):
            with pytest.raises(EmptyRingError):
                ring.sample(1, **spans)
        return
    for count, most in ((1, None), (40, None), (1, 3), (40, 3), (7, 50)):
        spans = {} if most is None else {"n_step": most, "gamma": 0.97}
        check_batch(ring.sample(count, 0.4, **spans), reference, count, most)
    check_sequences(ring, reference)


def check_batch(batch, reference, count, most):
    refs, weights = reference.priorities.sample(count, 0.4)
    assert batch.indices.tolist() == refs
    assert set(refs) <= set(reference.refs())
    assert batch.weights.tobytes() == np.array(weights).tobytes()
    if most is None:
        assert batch.steps is None
    for i, ref in enumerate(refs):
        used = [ref] if most is None else reference.steps(ref, most)
        for name in NAMES:
            source = reference.values(used[-1] if name in LAST else ref)
            if name != "reward" or most is None:
                assert batch[name][i].tobytes() == np.asarray(source[name]).tobytes(), name
        if most is not None:
            rewards = [reference.values(step)["reward"] for step in used]
            total, discount = n_step_return(rewards, 0.97, np.float32)
            assert batch["reward"][i].tobytes() == total.tobytes()
            assert batch.discounts[i].tobytes() == discount.tobytes()
            assert batch.steps[i] == len(used)


def check_sequences(ring, reference):
    """Windows are drawn alike, by the generator that draws by priority too."""
    windows = reference.windows(2, pad=True)
    batch = ring.sample_sequences(4, 2, pad=True)
    for refs, mask in zip(batch.indices, batch.mask, strict=True):
        assert refs[mask].tolist() in windows
    state, increment = ring.storage.core.seed_state
    reference.priorities.random.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": state, "inc": increment},
        "has_uint32": 0,
        "uinteger": 0,
    }


OPTIONS = st.fixed_dictionaries(
    {
        "alpha": st.sampled_from([0.0, 0.6, 1.0]),
        "epsilon": st.sampled_from([0.0, 1e-6]),
        "stratified": st.booleans(),
        "normalize": st.sampled_from(["buffer", "batch"]),
    }
)
ACTION = st.sampled_from(
    ["add", "masked", "extend", "lane", "break", "drop", "update", "update", "assign", "restore"]
)
ACTIONS = st.lists(st.tuples(ACTION, st.booleans(), st.integers(0, 2**16)), max_size=25)


@settings(max_examples=80)
@given(st.integers(1, 3), st.integers(16, 40), OPTIONS, ACTIONS)
def test_any_history_of_stacks_draws_what_the_references_draw(lanes, per_lane, options, actions):
    reference = PrioritizedReference(lanes, per_lane, **options)
    with tempfile.TemporaryDirectory() as folder:
        player = PrioritizedPlayer(new_ring(reference, options), reference)
        try:
            for number, (action, looks, seed) in enumerate(actions):
                directory = Path(folder) / str(number)
                directory.mkdir()
                act(player, action, np.random.default_rng(seed), directory, options)
                if looks:
                    check(player.ring, reference)
            check(player.ring, reference)
        finally:
            player.ring.close()


def test_rows_whose_frames_go_are_drawn_no_more_however_high_their_priority():
    options = {"alpha": 1.0}
    reference = PrioritizedReference(1, 16, **options)
    random = np.random.default_rng(5)
    with new_ring(reference, options) as ring:
        player = PrioritizedPlayer(ring, reference)
        player.gives = True
        for _ in range(60):
            player.add(random, masked=False)
            refs = reference.refs()
            oldest = refs[: len(refs) // 2]
            errors = np.full(len(oldest), 1e6)
            ring.update_priorities(oldest, errors)
            reference.settle()
            reference.priorities.set(oldest, [reference.priorities.store(1e6)] * len(oldest))
            check(ring, reference)
        middle = int(ring.tail) + 8
        ring.storage.core.drop_rows(0, middle, 1)
        reference.drop(0, middle, 1)
        check(ring, reference)


def test_an_add_of_stacks_with_a_bad_priority_changes_nothing():
    reference = PrioritizedReference(2, 32)
    random = np.random.default_rng(1)
    with new_ring(reference, {}) as ring:
        player = PrioritizedPlayer(ring, reference)
        player.add(random, masked=False)
        before = ring.total_count.tolist()
        rows = player.columns([[player.step(lane, random) for lane in range(2)]] * 3)
        for bad in (np.nan, -1.0, np.inf):
            with pytest.raises(PriorityError):
                ring.extend(**rows, priority=[[1, 1], [1, bad], [1, 1]])
        rows["next_obs/camera"] = rows["next_obs/camera"] ^ 1
        with pytest.raises(BrokenStackError):
            ring.extend(**rows, priority=np.full((3, 2), 1e9))
        assert (ring.total_count.tolist(), ring.max_priority) == (before, 1.0)
        check(ring, reference)


def test_an_output_that_is_filled_anew_has_no_steps_of_former_rows():
    reference = PrioritizedReference(1, 32)
    with new_ring(reference, {}) as ring:
        player = PrioritizedPlayer(ring, reference)
        player.extend(np.random.default_rng(3), None)
        out = ring.sample(4, n_step=2, gamma=0.9)
        assert isinstance(out, Batch)
        assert out.steps is not None
        assert ring.sample(4, out=out) is out
        assert (out.steps, out.discounts) == (None, None)


def test_rows_of_a_plain_ring_of_stacks_come_with_priority_1(tmp_path):
    reference = PrioritizedReference(1, 32)
    with (
        ReplayBuffer(SCHEMA, 32, seed=1) as plain,
        new_ring(reference, {"stratified": False}) as ring,
    ):
        player = PrioritizedPlayer(plain, reference)
        player.extend(np.random.default_rng(3), None)
        saved = save(plain, tmp_path)
        assert (saved.header.version, saved.header.priorities) == (2, None)
        saved.install(ring)
        assert 0 < len(ring) < ring.total_count
        check_tree(ring, reference.priorities.leaves())
        assert set(ring.sample(500).indices.tolist()) == set(reference.refs())
        (tmp_path / "again").mkdir()
        again = save(ring, tmp_path / "again").header
        assert (again.version, again.priorities.highest) == (2, 1.0)
        assert BufferHeader.from_bytes(again.to_bytes(), path="header") == again
