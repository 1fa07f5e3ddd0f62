"""Arguments that cannot work: a typed error that names them, and nothing changed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pyengine import Field, ReplayBuffer
from pyengine.errors import (
    ConfigError,
    EmptyRingError,
    FieldDtypeError,
    FieldShapeError,
    MissingFieldError,
    RowError,
    SharedMemoryError,
    UnknownFieldError,
    UnknownRefError,
)

FIELDS = {"obs": ((3,), "uint8"), "mark": Field((), "int32", mutable=True, default=0)}

MADE_OF = [
    ({"capacity": 2.7}, "capacity"),
    ({"capacity": True}, "capacity"),
    ({"capacity": 0}, "capacity"),
    ({"capacity": -4}, "capacity"),
    ({"capacity": "16"}, "capacity"),
    ({"capacity": None}, "capacity"),
    ({"capacity": 1 << 62}, "capacity"),
    ({"capacity": 1 << 50}, "capacity"),
    ({"capacity": 15}, "capacity"),
    ({"capacity": 1}, "capacity"),
    ({"num_envs": 0}, "num_envs"),
    ({"num_envs": 1.5}, "num_envs"),
    ({"num_envs": False}, "num_envs"),
    ({"num_envs": 1 << 40, "capacity": 1 << 40}, "num_envs"),
    ({"seed": -1}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"seed": "x"}, "seed"),
    ({"seed": True}, "seed"),
    ({"seed": [1, 2]}, "seed"),
    ({"slot_wait": -1}, "slot_wait"),
    ({"slot_wait": math.nan}, "slot_wait"),
    ({"slot_wait": "5"}, "slot_wait"),
    ({"slot_wait": None}, "slot_wait"),
]


@pytest.mark.parametrize(("change", "name"), MADE_OF)
def test_a_ring_of_nonsense_is_refused(change, name):
    arguments = {"capacity": 16, "num_envs": 2, **change}
    with pytest.raises(ConfigError) as caught:
        ReplayBuffer(FIELDS, **arguments)
    assert caught.value.field == name
    assert caught.value.expected is not None
    assert caught.value.got == arguments[name] or math.isnan(arguments[name])


def test_what_counts_as_an_integer_is_taken():
    for count in (16, np.int32(16), np.array(16), torch.tensor(16)):
        with ReplayBuffer(FIELDS, count, num_envs=np.int64(2), seed=1 << 100) as ring:
            assert (ring.capacity, ring.num_envs) == (16, 2)


def test_a_ring_larger_than_any_memory_is_an_error_of_memory():
    ring = ReplayBuffer(FIELDS, 1 << 44)
    with pytest.raises(SharedMemoryError):
        ring.add(obs=[1, 2, 3])
    assert len(ring) == 0


@pytest.fixture
def ring():
    with ReplayBuffer(FIELDS, 16, num_envs=2, seed=3) as made:
        made.add(obs=np.ones((2, 3), np.uint8))
        yield made


RAGGED = [[1, 2, 3], [4, 5]]
CALLS = [
    (lambda ring: ring.add([1, 2]), RowError, "rows"),
    (lambda ring: ring.add(5), RowError, "rows"),
    (lambda ring: ring.extend([1, 2]), RowError, "rows"),
    (lambda ring: ring.add(obs=RAGGED), FieldShapeError, "obs"),
    (lambda ring: ring.extend(obs=[RAGGED]), FieldShapeError, "obs"),
    (lambda ring: ring.add(obs=[[1] * 3] * 2, mark=[[1], [1, 2]]), FieldShapeError, "mark"),
    (lambda ring: ring.add(obs=[[1] * 3] * 2, mask=[[True], []]), FieldShapeError, "mask"),
    (lambda ring: ring.add({"obs": [[1] * 3] * 2}, obs=[[1] * 3] * 2), RowError, "obs"),
    (lambda ring: ring.extend(obs=np.ones((2, 3), np.uint8), lane=0.5), ConfigError, "lane"),
    (lambda ring: ring.extend(obs=np.ones((2, 3), np.uint8), lane="a"), ConfigError, "lane"),
    (lambda ring: ring.extend(obs=np.ones((2, 3), np.uint8), lane=True), ConfigError, "lane"),
    (lambda ring: ring.extend(obs=np.ones((2, 3), np.uint8), lane=2), ConfigError, "lane"),
    (lambda ring: ring.extend(obs=np.ones((2, 3), np.uint8), lane=-1), ConfigError, "lane"),
    (lambda ring: ring.break_episode(2), ConfigError, "lane"),
    (lambda ring: ring.break_episode(0.5), ConfigError, "lane"),
    (lambda ring: ring.breaks(-1), ConfigError, "lane"),
    (lambda ring: ring.breaks("a"), ConfigError, "lane"),
    (lambda ring: ring.sample(2.5), ConfigError, "batch_size"),
    (lambda ring: ring.sample(-1), ConfigError, "batch_size"),
    (lambda ring: ring.sample(True), ConfigError, "batch_size"),
    (lambda ring: ring.sample("a"), ConfigError, "batch_size"),
    (lambda ring: ring.sample(None), ConfigError, "batch_size"),
    (lambda ring: ring.sample(1 << 60), ConfigError, "batch_size"),
    (lambda ring: ring.sample(5, out=5), RowError, "out"),
    (lambda ring: ring.sample(1, out=[np.zeros((1, 3))]), RowError, "out"),
    (lambda ring: ring.sample(1, out={"obs": 5}), FieldShapeError, "obs"),
    (lambda ring: ring.sample(1, out={"obs": [[0, 0, 0]]}), FieldShapeError, "obs"),
    (lambda ring: ring.sample(1, out={"obs": np.zeros((1, 3))}), FieldDtypeError, "obs"),
    (lambda ring: ring.sample(1, out={"x": np.zeros((1, 3))}), UnknownFieldError, "x"),
    (lambda ring: ring.gather([[0], [1, 2]]), FieldShapeError, "refs"),
    (lambda ring: ring.gather([True, False]), FieldDtypeError, "refs"),
    (lambda ring: ring.gather("a"), FieldDtypeError, "refs"),
    (lambda ring: ring.gather_at([15]), UnknownRefError, "refs"),
    (lambda ring: ring.refs_at([0.5]), FieldDtypeError, "positions"),
    (lambda ring: ring.update([0, 1], mark=[[1], [2, 3]]), FieldShapeError, "mark"),
    (lambda ring: ring.update([0, 1], mark=[1, 2, 3]), FieldShapeError, "mark"),
    (lambda ring: ring.update([0], mark=0.5), FieldDtypeError, "mark"),
    (lambda ring: ring.column("mark").__setitem__(0, 0.5), FieldDtypeError, "mark"),
    (lambda ring: ring.update([0]), MissingFieldError, "fields"),
    (lambda ring: ring.column("mark").__setitem__(0, 1 << 40), FieldDtypeError, "mark"),
    (lambda ring: ring.column("mark").__setitem__(slice(0, 3), [1, 2]), FieldShapeError, "mark"),
    (lambda ring: ring.column("x"), UnknownFieldError, "x"),
]


@pytest.mark.parametrize(("call", "error", "name"), CALLS)
def test_a_bad_argument_is_named_and_changes_nothing(ring, call, error, name):
    def state():
        rows = ring[ring.refs()]
        sampler = ring.header_record()["sampler"]
        return [rows[n].tolist() for n in FIELDS], ring.total_count.tolist(), sampler

    before = state()
    with pytest.raises(error) as caught:
        call(ring)
    assert caught.value.field == name
    assert caught.value.expected is not None
    assert state() == before


def test_a_field_given_twice_in_nested_and_flat_form_is_refused():
    with ReplayBuffer({"a": {"b": "int8"}}, 4) as ring:
        with pytest.raises(RowError) as caught:
            ring.add({"a": {"b": 1}, "a/b": 2})
        assert caught.value.field == "a/b"
        assert len(ring) == 0


def test_reading_an_empty_ring_is_an_error_and_makes_no_memory():
    with ReplayBuffer(FIELDS, 16, num_envs=2) as ring:
        for call, error in (
            (lambda: ring.sample(1), EmptyRingError),
            (lambda: ring.sample(0), EmptyRingError),
            (lambda: ring.gather([0]), UnknownRefError),
            (lambda: ring.gather_at([0]), UnknownRefError),
            (lambda: ring.update([0], mark=1), UnknownRefError),
            (lambda: ring.add(obs=RAGGED), FieldShapeError),
            (lambda: ring.add(), RowError),
        ):
            with pytest.raises(error):
                call()
        assert len(ring.gather([])["obs"]) == 0
        assert np.asarray(ring.column("obs")).tolist() == [[0, 0, 0]] * 16
        assert ring.breaks(1).tolist() == ring.refs().tolist() == []
        assert ring.update([], mark=1) == ring.lost_updates == 0
        ring.break_episode()
        assert ring.storage is None
        ring.add(obs=np.ones((2, 3), np.uint8))
        assert ring.breaks(1).tolist() == [0]


def test_refs_in_memory_that_cannot_be_written_are_taken(ring):
    refs = np.arange(2)
    refs.flags.writeable = False
    assert ring.gather(refs).indices.tolist() == [0, 1]
    assert ring.update(refs, mark=[1, 2]) == 0
    assert ring.gather(np.arange(4)[::2][:1])["mark"].tolist() == [1]
