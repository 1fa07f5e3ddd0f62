"""Stacks, n-step returns and sequences against a reference that keeps whole rows."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_rings import save
from span_reference import LAST, NAMES, SCHEMA, Player, Reference, n_step_return

from pyengine import Field, ReplayBuffer, Schema
from pyengine.errors import DroppedRowError, EmptyRingError, UnknownRefError
from pyengine.replay.steps import NStep

PLAIN = Schema(
    {
        name: field if field.mutable else Field(field.shape, field.dtype)
        for name, field in SCHEMA.items()
    },
    episode_end=SCHEMA.episode_end,
)

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "add", "masked", "extend", "lane", "break", "drop", "restore", "first"]
        ),
        st.integers(0, 2**16),
    ),
    max_size=25,
)


def new_ring(reference: Reference) -> ReplayBuffer:
    lanes = len(reference.lanes)
    schema = SCHEMA if reference.stacked else PLAIN
    return ReplayBuffer(schema, lanes * reference.lanes[0].capacity, num_envs=lanes, seed=1)


@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(16, 40), st.booleans(), ACTIONS)
def test_any_history_gives_the_spans_of_the_reference(lanes, per_lane, stacked, actions):
    reference = Reference(lanes, per_lane, stacked=stacked)
    with tempfile.TemporaryDirectory() as folder:
        player = Player(new_ring(reference), reference)
        try:
            for number, (action, seed) in enumerate(actions):
                directory = Path(folder) / str(number)
                directory.mkdir()
                act(player, action, np.random.default_rng(seed), directory)
            check(player.ring, reference)
        finally:
            player.ring.close()


def act(player: Player, action: str, random: np.random.Generator, directory: Path) -> None:
    ring, reference = player.ring, player.reference
    lanes = len(reference.lanes)
    lane = int(random.integers(lanes))
    if action in ("add", "masked"):
        player.add(random, masked=action == "masked")
    elif action in ("extend", "lane"):
        player.extend(random, lane if action == "lane" else None)
    elif action == "break":
        ring.break_episode(lane)
        reference.lanes[lane].pending = True
    elif action == "first":
        len(ring.breaks(lane))  # marks of a plain ring from here on
    elif action == "drop" and ring.storage is not None:
        first = int(random.integers(0, len(reference.lanes[lane].rows) + 1))
        count = int(random.integers(1, 4))
        ring.storage.core.drop_rows(lane, first, count)
        reference.drop(lane, first, count)
    elif action == "restore" and ring.storage is not None:
        keep = bool(random.random() < 0.5)
        kept = int(random.integers(0, 40)) * lanes if random.random() < 0.3 else None
        fresh = new_ring(reference)
        saved = save(ring, directory)
        rows = saved.install(
            fresh, keep_breaks=keep, replay_last=kept, eager=bool(random.random() < 0.5)
        )
        ring.close()
        player.ring = fresh
        reference.restore(keep_breaks=keep, replay_last=kept)
        assert rows == len(reference.refs())


def check(ring: ReplayBuffer, reference: Reference) -> None:
    lanes, refs = len(reference.lanes), reference.refs()
    assert np.atleast_1d(ring.total_count).tolist() == [len(lane.rows) for lane in reference.lanes]
    assert np.atleast_1d(ring.tail).tolist() == [lane.tail for lane in reference.lanes]
    assert len(ring) == len(refs)
    assert ring.refs().tolist() == refs
    for lane in range(lanes):
        assert ring.breaks(lane).tolist() == reference.breaks(lane)
    check_holes(ring, reference, refs)
    if not refs:
        for draw in (lambda: ring.sample(1), lambda: ring.sample(1, n_step=2, gamma=0.5)):
            with pytest.raises(EmptyRingError):
                draw()
        return
    batch = ring.gather(refs)
    for name in NAMES:
        expected = np.array([reference.values(ref)[name] for ref in refs])
        np.testing.assert_array_equal(batch[name], expected, strict=True)
    drawn = ring.sample(40)
    assert set(drawn.indices.tolist()) <= set(refs)
    np.testing.assert_array_equal(drawn["obs/camera"], ring.gather(drawn.indices)["obs/camera"])
    for most, gamma in ((1, 0.9), (3, 0.99), (50, 0.3)):
        check_steps(ring, reference, refs, most, gamma)
    for length in (1, 3, 9):
        for pad in (False, True):
            check_windows(ring, reference, length, pad)


def check_holes(ring: ReplayBuffer, reference: Reference, refs: list[int]) -> None:
    """Rows of the window that are not valid are none: to columns, gathers and updates."""
    lanes, per_lane = len(reference.lanes), reference.lanes[0].capacity
    camera = np.zeros((ring.capacity, 6, 2), np.uint8)
    for ref in refs:
        row, lane = divmod(ref, lanes)
        camera[lane * per_lane + row % per_lane] = reference.values(ref)["obs/camera"]
    np.testing.assert_array_equal(np.asarray(ring.column("obs/camera")), camera)
    for index, lane in enumerate(reference.lanes):
        for row in range(lane.tail, len(lane.rows)):
            if lane.is_valid(row):
                continue
            ref = row * lanes + index
            error = DroppedRowError if lane.rows[row].is_dropped else UnknownRefError
            with pytest.raises(error):
                ring.gather([ref])
            assert ring.update([ref], score=9.0) == 1


def check_steps(ring, reference, refs, most, gamma):
    for reward, dtype in (("reward", np.float32), ("value", np.float64)):
        plan = NStep(most, gamma, reward=reward)
        batch = ring.gather(refs, n_step=plan)
        for i, ref in enumerate(refs):
            used = reference.steps(ref, most)
            rewards = [reference.values(step)[reward] for step in used]
            expected, discount = n_step_return(rewards, gamma, dtype)
            assert batch[reward][i].tobytes() == expected.tobytes()
            assert batch.discounts[i].tobytes() == discount.tobytes()
            assert batch.steps[i] == len(used)
            for name in NAMES:
                if name != reward:
                    source = reference.values(used[-1] if name in LAST else ref)
                    assert np.array_equal(batch[name][i], source[name]), name
    drawn = ring.sample(7, n_step=most, gamma=gamma)
    again = ring.gather(drawn.indices, n_step=most, gamma=gamma)
    for name in NAMES:
        np.testing.assert_array_equal(drawn[name], again[name])


def check_windows(ring, reference, length, pad):
    windows = reference.windows(length, pad=pad)
    if not windows:
        with pytest.raises(EmptyRingError):
            ring.sample_sequences(3, length, pad=pad)
        return
    batch = ring.sample_sequences(8, length, pad=pad)
    assert batch["obs/camera"].shape == (8, length, 6, 2)
    for i in range(8):
        refs = batch.indices[i][batch.mask[i]].tolist()
        assert refs in windows
        assert batch.indices[i].tolist() == refs + [-1] * (length - len(refs))
        for name in NAMES:
            for t, ref in enumerate(refs):
                assert np.array_equal(batch[name][i, t], reference.values(ref)[name])
            assert not np.any(batch[name][i, len(refs) :])
    assert pad or batch.mask.all()


def test_every_window_is_drawn_alike():
    schema = Schema({"id": "int64", "end": "bool"}, episode_end=("end",))
    with ReplayBuffer(schema, 256, seed=3) as ring:
        ends = np.zeros(60, bool)
        ends[[4, 6, 20, 21, 59]] = True  # episodes of 5, 2, 14, 1 and 38 rows
        ring.extend(id=np.arange(60), end=ends)
        for length, pad, firsts in (
            (5, False, [0, *range(7, 17), *range(22, 56)]),
            (5, True, [0, 5, *range(7, 17), 21, *range(22, 56)]),
            (20, True, [0, 5, 7, 21, *range(22, 41)]),
            (38, False, [22]),
        ):
            drawn = ring.sample_sequences(1000 * len(firsts), length, pad=pad)
            counts = Counter(drawn.indices[:, 0].tolist())
            assert sorted(counts) == firsts
            if len(firsts) > 1:
                squares = sum((count - 1000) ** 2 / 1000 for count in counts.values())
                # A chi-square that is exceeded once in 10,000 or less: mean + 5.5 deviations.
                freedom = len(firsts) - 1
                assert squares < freedom + 5.5 * np.sqrt(2 * freedom)
        with pytest.raises(EmptyRingError):
            ring.sample_sequences(1, 39)
