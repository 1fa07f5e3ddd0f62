"""What a ring refuses: typed, with field, expected and got, and the ring unchanged."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from pyengine import Field, ReplayBuffer
from pyengine.errors import (
    ClosedError,
    FieldDtypeError,
    FieldShapeError,
    ForkedProcessError,
    ImmutableFieldError,
    MissingFieldError,
    UnknownFieldError,
    UnknownRefError,
)

FIELDS = {"obs": ((3,), "uint8"), "reward": "float32", "mark": Field((), "int32", mutable=True)}
GOOD = {
    "obs": np.zeros((2, 3), np.uint8),
    "reward": np.zeros(2, np.float32),
    "mark": np.zeros(2, np.int32),
}


@pytest.fixture
def ring():
    with ReplayBuffer(FIELDS, 16, num_envs=2, seed=3) as made:
        made.add(GOOD)
        yield made


def _state(ring):
    rows = ring[ring.refs()]
    return [rows[name].tolist() for name in FIELDS], ring.total_count.tolist(), ring.lost_updates


BAD = [
    ({"obs": np.zeros((2, 4), np.uint8)}, FieldShapeError, "obs"),
    ({"obs": np.zeros((3, 3), np.uint8)}, FieldShapeError, "obs"),
    ({"obs": np.full((2, 3), 256)}, FieldDtypeError, "obs"),
    ({"obs": np.zeros((2, 3), np.float32)}, FieldDtypeError, "obs"),
    ({"reward": np.array(["a", "b"])}, FieldDtypeError, "reward"),
    ({"reward": np.zeros(2, np.complex64)}, FieldDtypeError, "reward"),
    ({"mark": np.array([1 << 40, 0])}, FieldDtypeError, "mark"),
    ({"mark": torch.zeros(2, dtype=torch.bfloat16)}, FieldDtypeError, "mark"),
    ({"other": np.zeros(2)}, UnknownFieldError, "other"),
    ({"@start": np.zeros(2, np.uint8)}, UnknownFieldError, "@start"),
    ({"reward": None}, MissingFieldError, "reward"),
    ({"mask": [1, 0]}, FieldDtypeError, "mask"),
    ({"mask": np.array([1, 0], np.uint8)}, FieldDtypeError, "mask"),
    ({"mask": np.ones(3, bool)}, FieldShapeError, "mask"),
]


@pytest.mark.parametrize(("change", "error", "field"), BAD)
def test_a_bad_row_leaves_the_ring_unchanged(ring, change, error, field):
    before = _state(ring)
    rows = {**GOOD, **change}
    mask = rows.pop("mask", None)
    if error is MissingFieldError:
        del rows[field]
    with pytest.raises(error) as caught:
        ring.add(rows, mask=mask)
    assert caught.value.field == field
    assert caught.value.expected is not None
    assert caught.value.got is not None
    assert _state(ring) == before


def test_masks_of_lists_and_tensors_are_taken(ring):
    ring.add(GOOD, mask=[True, False])
    ring.add(GOOD, mask=torch.tensor([True, False]))
    assert ring.total_count.tolist() == [3, 1]


def test_append_fields_are_never_changed_in_place(ring):
    before = _state(ring)
    for change in (
        lambda: ring.update([0], mark=5, reward=1.0),
        lambda: ring.column("reward").__setitem__(0, 1.0),
    ):
        with pytest.raises(ImmutableFieldError) as caught:
            change()
        assert caught.value.field == "reward"
    assert _state(ring) == before


@pytest.mark.parametrize("ref", [-1, 2, 1 << 62])
def test_an_update_of_an_unknown_ref_changes_nothing(ring, ref):
    before = _state(ring)
    with pytest.raises(UnknownRefError) as caught:
        ring.update([0, ref], mark=[7, 8])
    assert caught.value.got == ref
    assert _state(ring) == before


def test_refs_are_integers(ring):
    with pytest.raises(FieldDtypeError):
        ring.gather([0.5])


CALLS = {
    "add": lambda ring: ring.add(GOOD),
    "extend": lambda ring: ring.extend({n: v[None] for n, v in GOOD.items()}),
    "sample": lambda ring: ring.sample(1),
    "gather": lambda ring: ring.gather([0]),
    "update": lambda ring: ring.update([0], mark=1),
    "break_episode": lambda ring: ring.break_episode(),
    "breaks": lambda ring: ring.breaks(0),
    "len": len,
    "total_count": lambda ring: ring.total_count,
    "refs": lambda ring: ring.refs(),
    "refs_at": lambda ring: ring.refs_at([0]),
    "column": lambda ring: ring.column("obs")[0],
    "lost_updates": lambda ring: ring.lost_updates,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_ring_says_so(ring, call):
    ring.close()
    with pytest.raises(ClosedError):
        CALLS[call](ring)
    ring.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("filled", [True, False])
def test_a_forked_child_is_told_that_the_ring_is_not_its_own(ring, filled):
    other = ring if filled else ReplayBuffer(FIELDS, 16, num_envs=2)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        wrong = []
        for name, call in CALLS.items():
            try:
                call(other)
                wrong.append(name)
            except ForkedProcessError:
                pass
            except BaseException as error:
                wrong.append(f"{name}: {error!r}")
        os.write(writing, repr(wrong).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert said == b"[]"
    ring.add(GOOD)


def test_a_field_named_like_an_argument_comes_in_a_dict():
    with ReplayBuffer({"mask": "bool", "lane": "int64"}, 16) as ring:
        with pytest.raises(MissingFieldError, match="'mask' is an argument of the call"):
            ring.add(mask=np.array([True]), lane=3)
        ring.add({"mask": True, "lane": 3})
        assert ring[ring.refs()]["lane"].tolist() == [3]
