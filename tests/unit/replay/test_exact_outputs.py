"""Outputs that are exactly what the native core takes are filled in one look, others as before."""

from __future__ import annotations

import numpy as np
import pytest

from pyengine import Field, ReplayBuffer
from pyengine.errors import ClosedError, EmptyRingError, RowError, UnknownRefError

FIELDS = {
    "obs": {"image": ((2, 3), "uint8"), "speed": "float32"},
    "half": ((4,), "bfloat16"),
    "done": "bool",
    "mark": Field((), "int64", mutable=True, default=7),
    "wide": Field((2,), "int16", mutable=True, default=1),
}
REFS = np.array([3, 0, 5, 3])


@pytest.fixture
def ring():
    with ReplayBuffer(FIELDS, 8, seed=2) as made:
        random = np.random.default_rng(1)
        made.extend(
            {
                "obs": {"image": random.integers(0, 255, (6, 2, 3), np.uint8), "speed": range(6)},
                "half": random.integers(0, 9, (6, 4), np.uint16),
                "done": random.random(6) > 0.5,
            }
        )
        yield made


def outputs(ring, *, rows=4):
    return {
        name: np.zeros((rows, *ring.schema[name].shape), ring.column(name).dtype)
        for name in ring.schema
    }


def is_exact(ring, out, refs=REFS):
    return ring.storage.core.gather_exact(refs, out, np.ndarray, None, False)


def test_exact_outputs_are_filled_like_others(ring):
    out = outputs(ring)
    assert is_exact(ring, out)
    expected = ring.gather(REFS)
    for name, value in out.items():
        assert np.array_equal(value, expected[name])
        value[...] = 0
    batch = ring.gather(REFS, out=out)
    assert batch["obs"]["image"] is out["obs/image"]
    assert batch.indices.tolist() == REFS.tolist()
    assert np.array_equal(batch["half"], expected["half"])
    again = ring.gather(REFS[::-1].copy(), out=batch)
    assert again is batch
    assert batch.indices.tolist() == [3, 5, 0, 3]
    assert np.array_equal(out["mark"], expected["mark"][::-1])


def test_a_draw_into_exact_outputs_is_the_same_draw(ring):
    with ReplayBuffer(FIELDS, 8, seed=2) as other:
        other.extend({name: ring.gather(ring.refs())[name] for name in ring.schema})
        for _ in range(3):
            one = ring.sample(4, out=outputs(ring))
            two = other.sample(4)
            assert one.indices.tolist() == two.indices.tolist()
            assert np.array_equal(one["obs"]["speed"], two["obs"]["speed"])


INEXACT = {
    "a dtype": lambda out: out.update(done=out["done"].view(np.uint8)),
    "a shape": lambda out: out.update({"obs/image": np.zeros((4, 3, 2), np.uint8)}),
    "rows": lambda out: out.update(mark=np.zeros(5, np.int64)),
    "a hole": lambda out: out.update(mark=np.zeros(8, np.int64)[::2]),
    "an axis more": lambda out: out.update(mark=np.zeros((4, 1), np.int64)),
    "byte order": lambda out: out.update({"obs/speed": np.zeros(4, ">f4")}),
    "another field": lambda out: out.update(other=np.zeros(4)),
    "no array": lambda out: out.update(mark=bytearray(32)),
    "read-only": lambda out: out["mark"].setflags(write=False),
}


@pytest.mark.parametrize("case", INEXACT)
def test_what_does_not_fit_is_refused_as_before(ring, case):
    out = outputs(ring)
    INEXACT[case](out)
    assert not is_exact(ring, out)
    with pytest.raises(RowError):
        ring.gather(REFS, out=out)


def test_what_fits_otherwise_is_filled_as_before(ring):
    out = {"obs": {"speed": np.zeros(4, np.float32)}}
    assert not is_exact(ring, out)
    assert ring.gather(REFS, out=out)["obs"]["speed"].tolist() == [3, 0, 5, 3]
    out = {"mark": np.zeros(4, np.int64)}
    for refs in (REFS.tolist(), REFS.astype(np.int32), REFS.reshape(2, 2), np.repeat(REFS, 2)[::2]):
        assert not is_exact(ring, out, refs)
        assert ring.gather(refs, out=out)["mark"].tolist() == [7] * 4


def test_errors_are_the_same(ring):
    out = {"mark": np.zeros(1, np.int64)}
    for ref in (-1, 6):
        with pytest.raises(UnknownRefError):
            ring.gather(np.array([ref]), out=out)
    with ReplayBuffer(FIELDS, 8) as empty:
        empty.column("mark")[0] = 1  # takes memory
        with pytest.raises(EmptyRingError):
            empty.sample(1, out=out)
    ring.close()
    with pytest.raises(ClosedError):
        ring.gather(np.array([0]), out=out)
