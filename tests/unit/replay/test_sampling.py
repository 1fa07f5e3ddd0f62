"""Draws, dtypes and outputs of a ring."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from pyengine import Field, ReplayBuffer
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


def test_masks_that_do_not_lie_in_one_piece_are_read_right():
    with ReplayBuffer({"id": "int64"}, 64, num_envs=4) as ring:
        wide = np.array([True, False, True, True, False, False, True, False])
        ring.add(id=np.arange(4), mask=wide[::2])
        assert ring.total_count.tolist() == [1, 1, 0, 1]
        steps = np.zeros((4, 3), bool)
        steps[0, 1] = steps[3, 2] = True
        ring.extend(id=np.arange(12).reshape(3, 4), mask=steps.T)
        assert ring.total_count.tolist() == [2, 1, 0, 2]
        assert ring.gather([4, 7])["id"].tolist() == [4, 11]


@pytest.mark.parametrize("kind", ["array", "tensor", "batch"])
def test_outputs_of_the_caller_are_filled_in_place(kind):
    with ReplayBuffer({"x": {"y": ((3,), "int32")}, "z": "float32"}, 8) as ring:
        ring.extend(x={"y": np.arange(24).reshape(8, 3)}, z=np.arange(8))
        out = {"x": {"y": np.zeros((4, 3), np.int32)}, "z": np.zeros(4, np.float32)}
        if kind == "tensor":
            out = {"x/y": torch.zeros((4, 3), dtype=torch.int32), "z": torch.zeros(4)}
        if kind == "batch":
            out = ring.gather([0, 0, 0, 0])
        places = out["x/y"] if "x/y" in out or kind == "batch" else out["x"]["y"], out["z"]
        batch = ring.gather([5, 1, 7, 0], out=out)
        assert batch["z"] is places[1]
        assert batch["x"]["y"] is places[0]
        assert (batch is out) == (kind == "batch")
        assert places[1].tolist() == [5, 1, 7, 0]
        assert places[0][:, 1].tolist() == [16, 4, 22, 1]
        assert batch.indices.tolist() == [5, 1, 7, 0]
        drawn = ring.sample(4, out=out)
        assert places[1].tolist() == drawn.indices.tolist()


def test_an_output_may_name_some_of_the_fields():
    with ReplayBuffer({"x": "int32", "z": "float32"}, 8) as ring:
        ring.add(x=1, z=2)
        assert list(ring.sample(1, out={"z": np.zeros(1, np.float32)})) == ["z"]


@pytest.mark.parametrize("kind", ["array", "tensor", "batch"])
def test_outputs_with_a_device_are_filled_and_carried_there(kind):
    with ReplayBuffer({"x": "bfloat16"}, 8) as ring:
        ring.extend(x=torch.arange(8, dtype=torch.bfloat16))
        out = {"x": np.zeros(2, np.uint16)}
        if kind == "tensor":
            out = {"x": torch.zeros(2, dtype=torch.bfloat16)}
        if kind == "batch":
            out = ring.gather([0, 0])
        batch = ring.gather([3, 6], out=out, device="cpu")
        assert batch["x"].device.type == "cpu"
        assert batch["x"].dtype == torch.bfloat16
        assert batch["x"].tolist() == [3, 6]
        filled = torch.as_tensor(out["x"]).view(torch.bfloat16)
        assert filled.tolist() == [3, 6]
        if kind == "batch":
            assert out.indices.tolist() == [3, 6]


def test_one_row_of_a_scalar_column_is_a_scalar():
    with ReplayBuffer({"x": "float32", "flag": "bool"}, 8) as ring:
        ring.extend(x=np.arange(8), flag=np.arange(8) % 2 == 1)
        for index in (3, -5, np.int64(3), np.array(3)):
            value, flag = ring.column("x")[index], ring.column("flag")[index]
            assert type(value) is np.float32
            assert type(flag) is np.bool_
            assert (value, flag) == (3, True)
        assert ring.column("x")[[3]].shape == (1,)
        with pytest.raises(IndexError):
            ring.column("x")[8]


def test_a_mutable_column_is_assigned_to_as_an_array_is():
    fields = {"id": "int8", "x": Field((2,), "float32", mutable=True, default=1.0)}
    with ReplayBuffer(fields, 8, num_envs=2) as ring:
        ring.extend(id=np.zeros((4, 2), np.int8))
        column, array = ring.column("x"), np.ones((8, 2), np.float32)
        chosen = array[:, 0] > 0
        for index, value in [
            (0, 2.0), (-1, [3, 4]), (slice(2, 4), 5), ([1, 5], [[6, 7], [8, 9]]),
            ((slice(None), 1), 0), ((3, 0), np.float64(2.5)), (Ellipsis, torch.full((2,), 8.0)),
            (chosen, 7), (slice(0, 0), 1),
        ]:  # fmt: skip
            column[index] = value
            array[index] = value
            np.testing.assert_array_equal(np.asarray(column), array, strict=True)
        assert ring[[0]]["x"].tolist() == [[7, 7]]
