"""Children that a restored generator spawns are those that would have come."""

from __future__ import annotations

import numpy as np
import pytest

from pyengine.capture.rngs import make_rng, rng_kind, rng_state, set_rng_state

pytestmark = pytest.mark.skipif(
    int(np.__version__.split(".")[0]) < 2, reason="this NumPy takes no seed sequence back"
)

SEEDS = {
    "an integer": 5,
    "many words": [1, 2**40, 2**100],
    "an array": np.arange(3),
    "the system's": None,
    "a child": np.random.SeedSequence(7, spawn_key=(3, 1)).spawn(2)[1],
    "a larger pool": np.random.SeedSequence(7, pool_size=8),
}


def draws(rng):
    return [child.integers(1 << 60, size=3).tolist() for child in rng.spawn(3)]


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.Philox, np.random.MT19937])
@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
def test_children_come_as_without_the_restore(bits, seed):
    rng = np.random.Generator(bits(seed))
    rng.spawn(2)
    rng.random(3)
    state = rng_state(rng)
    expected, numbers = draws(rng), rng.random(4)
    other = np.random.Generator(bits(99))
    set_rng_state(other, state)
    assert draws(other) == expected
    assert (other.random(4) == numbers).all()
    made = make_rng(rng_kind(rng), state)
    assert draws(made) == expected


def test_a_state_without_its_seeds_leaves_those_that_are_there():
    rng = np.random.default_rng(1)
    state = rng_state(rng)
    del state["seed_sequence"]
    other, twin = np.random.default_rng(2), np.random.default_rng(2)
    set_rng_state(other, state)
    assert draws(other) == draws(twin)
    assert other.random() == np.random.default_rng(1).random()
