"""Draws, dtypes and outputs of a ring."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from pyengine import ReplayBuffer
from pyengine.format.dtypes import BY_NAME


def _below(bits, bound):
    """Lemire's method, as the ring draws: one 64-bit word a try."""
    product = int(bits.random_raw()) * bound
    while product % 2**64 < bound and product % 2**64 < -bound % 2**64 % bound:
        product = int(bits.random_raw()) * bound
    return product >> 64


def test_draws_are_those_of_numpys_pcg64():
    with ReplayBuffer({"id": "int64"}, 100, seed=42) as ring:
        ring.extend(id=np.arange(37))
        bits = np.random.PCG64(42)
        assert ring.sample(500)["id"].tolist() == [_below(bits, 37) for _ in range(500)]


def test_rows_of_unequal_lanes_are_drawn_alike():
    with ReplayBuffer({"id": "int64"}, 300, num_envs=3, seed=7) as ring:
        for lane, rows in enumerate((1, 30, 69)):
            ring.extend(id=np.arange(rows) + 100 * lane, lane=lane)
        drawn = ring.sample(200_000)["id"]
        counts = np.unique(drawn, return_counts=True)[1]
        assert len(counts) == 100
        # Chi-square with 99 degrees of freedom; the seed is fixed.
        assert ((counts - 2000) ** 2 / 2000).sum() < 160


@pytest.mark.parametrize("name", BY_NAME)
def test_every_dtype_comes_back_bit_for_bit(name):
    spec = BY_NAME[name]
    raw = np.random.default_rng(1).integers(0, 2, (20, 3)).astype(spec.numpy)
    if name != "bool":
        raw = np.frombuffer(np.random.default_rng(1).bytes(raw.nbytes), spec.numpy).reshape(20, 3)
    with ReplayBuffer({"x": ((3,), name)}, 32) as ring:
        ring.extend(x=raw)
        ring.add(x=raw[0])
        rows = ring.gather(np.arange(21))
        assert rows["x"].tobytes() == raw.tobytes() + raw[0].tobytes()
        tensors = ring.gather(np.arange(21), device="cpu")["x"]
        assert tensors.dtype == getattr(torch, name)
        ring.add(x=tensors[5])
        out = {"x": torch.empty((1, 3), dtype=tensors.dtype)}
        ring.gather([21], out=out)
        assert out["x"].contiguous().view(torch.uint8).numpy().tobytes() == raw[5].tobytes()


def test_nested_dicts_go_in_and_come_out():
    with ReplayBuffer({"obs": {"a": {"b": "int8"}, "c": ((2,), "int8")}}, 4) as ring:
        ring.add(obs={"a": {"b": 1}, "c": [2, 3]})
        ring.add({"obs/a/b": 4, "obs/c": [5, 6]})
        rows = ring[[0, 1]]
        assert rows["obs"]["a"]["b"].tolist() == rows["obs/a/b"].tolist() == [1, 4]
        assert rows["obs"]["c"].tolist() == [[2, 3], [5, 6]]


def test_columns_index_as_arrays_do():
    with ReplayBuffer({"x": ((2, 3), "int32")}, 8) as ring:
        ring.extend(x=np.arange(60).reshape(10, 2, 3))
        column, array = ring.column("x"), np.asarray(ring.column("x"))
        keys = [
            0, -1, slice(2, 6), slice(None, None, -2), [1, 1, 7], (3, 1), (slice(None), 0),
            ([0, 1], [1, 0]), (..., 0), Ellipsis, (None, 0), array[:, 0, 0] > 20, ([[0], [1]], 0),
        ]  # fmt: skip
        for key in keys:
            np.testing.assert_array_equal(column[key], array[key], strict=True)


def test_samplers_beside_an_appending_thread_see_only_whole_rows():
    with ReplayBuffer({"a": ((64,), "int64"), "b": "int64"}, 512, num_envs=2) as ring:
        ring.add(a=np.zeros((2, 64), np.int64), b=[0, 0])
        stop, torn = threading.Event(), []

        def sample():
            while not stop.is_set():
                batch = ring.sample(32)
                if not (batch["a"] == batch["b"][:, None]).all():
                    torn.append(batch)

        threads = [threading.Thread(target=sample) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for i in range(5000):
                ring.add(a=np.full((2, 64), i), b=np.full(2, i))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not torn
