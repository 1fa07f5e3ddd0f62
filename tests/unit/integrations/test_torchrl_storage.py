"""A RingStorage gives TorchRL's buffers what TorchRL's own storage gives them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrl")

import torch
from tensordict import NonTensorData, TensorDict
from torchrl.data import ReplayBuffer, SliceSampler, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import (
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSamplerWithoutReplacement,
)
from torchrl.data.replay_buffers.writers import TensorDictMaxValueWriter
from torchrl_pairs import Pair, same, steps

from pyengine.errors import (
    ConfigError,
    ImmutableFieldError,
    MissingFieldError,
    SchemaError,
    UnknownFieldError,
)
from pyengine.integrations.torchrl import RingStorage

SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "in order": lambda: SamplerWithoutReplacement(shuffle=False, drop_last=True),
    "slices by trajectory": lambda: SliceSampler(
        slice_len=2, traj_key=("collector", "traj_ids"), strict_length=False
    ),
    "slices by end": lambda: SliceSampler(
        num_slices=4, end_key=("next", "done"), strict_length=False
    ),
    "slices by ends": lambda: SliceSampler(
        num_slices=4, end_keys=[("next", "done"), ("next", "truncated")], strict_length=False
    ),
    "slices found by itself": lambda: SliceSampler(slice_len=2, cache_values=True),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(
        slice_len=2, traj_key=("collector", "traj_ids"), strict_length=False
    ),
}

INDICES = [
    3, -2, np.int64(4), torch.tensor(5), slice(2, 7), slice(None, None, 2),
    [1, 1, 8], torch.tensor([0, -1, 3]), np.array([2, 2]), range(2, 6),
    torch.tensor([[1, 2], [3, 4]]), torch.tensor([True, False] * 6), (torch.tensor([1, 5]),),
    slice(None),
]  # fmt: skip


def tensordict_buffer(storage: Any, **settings: Any) -> Any:
    return TensorDictReplayBuffer(storage=storage, batch_size=8, **settings)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_batches_are_those_of_stock(name: str, kind: type[Any]) -> None:
    pair = Pair(lambda s: kind(storage=s, sampler=SAMPLERS[name](), batch_size=8), 30)
    for turn in range(12):
        pair.extend(steps(9, 9 * turn))
        if name != "without replacement" or turn > 1:
            for _ in range(3):
                pair.both(lambda buffer: buffer.sample(return_info=True))
        one = steps(1, 500 + turn)[0]
        pair.both(lambda buffer, one=one: buffer.add(one.clone()))


def test_batches_of_a_generator_of_its_own_are_those_of_stock() -> None:
    pair = Pair(lambda s: tensordict_buffer(s, generator=torch.Generator().manual_seed(3)), 10)
    for turn in range(4):
        pair.extend(steps(6, 6 * turn))
        pair.both(lambda buffer: buffer.sample())


def test_elements_may_be_tensors() -> None:
    pair = Pair(lambda s: ReplayBuffer(storage=s, batch_size=4), 10)
    for turn in range(4):
        pair.extend(torch.arange(8.0).reshape(4, 2) + 10 * turn)
        pair.both(lambda buffer: buffer.sample())
        pair.both(lambda buffer: buffer[:])
    pair.both(lambda buffer: buffer.extend([torch.ones(2), torch.zeros(2)]))
    pair.both(lambda buffer: buffer[torch.arange(10)])


@pytest.mark.parametrize("lanes", [(3,), (2, 2)])
@pytest.mark.parametrize("name", ["random", "without replacement", "slices by trajectory"])
def test_storages_of_several_dimensions_are_as_stocks(name: str, lanes: tuple[int, ...]) -> None:
    size = 8 * int(np.prod(lanes)) - 1  # rounded up, as stock does
    pair = Pair(
        lambda s: ReplayBuffer(storage=s, sampler=SAMPLERS[name](), batch_size=8, dim_extend=0),
        size, ndim=1 + len(lanes),
    )  # fmt: skip
    for turn in range(5):
        pair.extend(steps(3, 3 * turn, lanes))
        pair.both(lambda buffer: buffer.storage.max_size)
        pair.both(lambda buffer: buffer.sample())
        pair.both(lambda buffer: buffer.storage[:, 0])
        pair.both(lambda buffer: buffer.storage[1, slice(1, None)])
    pair.both(lambda buffer: buffer.storage[:].clone())


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("rows", [12, 19])
def test_indices_pick_what_they_pick_of_stock(index: Any, rows: int) -> None:
    pair = Pair(tensordict_buffer, 12)
    pair.extend(steps(rows))
    pair.both(lambda buffer: buffer.storage[index])


def test_an_index_beyond_the_elements_is_an_error() -> None:
    pair = Pair(tensordict_buffer, 12)
    pair.extend(steps(5))
    for index in (5, -6, torch.tensor([1, 5])):
        for buffer in (pair.stock, pair.ours):
            with pytest.raises(IndexError):
                buffer.storage[index]
    with pytest.raises(RuntimeError, match="non-initialized"):
        RingStorage(3)[0]


def test_an_extend_longer_than_the_storage_leaves_its_end() -> None:
    pair = Pair(tensordict_buffer, 10)
    pair.extend(steps(4))
    pair.extend(steps(37, 4))
    pair.both(lambda buffer: buffer[:].clone())
    assert pair.ours.writer._cursor == 41 % 10


def test_an_emptied_buffer_begins_at_its_first_index() -> None:
    pair = Pair(tensordict_buffer, 10)
    pair.extend(steps(14))
    pair.both(lambda buffer: buffer.empty())
    with pytest.raises(RuntimeError, match="empty"):
        pair.ours.sample()
    for turn in range(3):
        pair.extend(steps(6, 100 + 6 * turn))
        pair.both(lambda buffer: buffer[:].clone())


def test_a_whole_read_is_made_of_columns_that_read_when_looked_at() -> None:
    pair = Pair(tensordict_buffer, 12)
    pair.extend(steps(15))
    whole = pair.ours[:]
    reward = whole["next", "reward"]
    before = pair.ours.storage.rows.ring.gather
    reads = []
    pair.ours.storage.rows.ring.gather = lambda refs, **how: (
        reads.append(sorted(how.get("out", ()))),
        before(refs, **how),
    )[1]
    expected = pair.stock[:]["next", "reward"]
    assert reward.shape == expected.shape
    assert reward.dtype == expected.dtype
    assert len(reward) == 12
    assert reward.device == torch.device("cpu")
    assert not reads
    for operation in (
        lambda t: t.sum(), lambda t: t[3:5], lambda t: t[:, 0], lambda t: t.numpy().copy(),
        lambda t: t.squeeze(), lambda t: torch.cat([t, t]), lambda t: t + t, lambda t: 1 - t,
        lambda t: t[t > 7], lambda t: t.tolist(), lambda t: torch.stack([t, t]).mean(),
        lambda t: pickle.loads(pickle.dumps(t)), copy.deepcopy, lambda t: t.to(torch.float32),
        lambda t: torch.max(t, 0).values, lambda t: t[..., None], lambda t: list(t), lambda t: t.T,
    ):  # fmt: skip
        same(_plain(operation(expected)), _plain(operation(reward)))
    assert {name for names in reads for name in names} == {"next/reward"}
    pair.ours.extend(steps(1, 90))
    assert 90 in reward.tolist()[3], "a column shows what the rows are now"


def _plain(value: Any) -> Any:
    return torch.as_tensor(value) if isinstance(value, np.ndarray) else value


def test_what_a_column_writes_changes_mutable_keys_alone() -> None:
    keys = ["half", ("next", "reward"), ("next", "done")]
    stock = Pair(tensordict_buffer, 12).stock
    ours = tensordict_buffer(RingStorage(12, mutable=keys))
    for buffer in (stock, ours):
        buffer.extend(steps(17))
        buffer.set_at_(("next", "reward"), torch.full((2, 1), -1.0).double(), torch.tensor([1, 6]))
        buffer.set_("half", torch.arange(12).to(torch.bfloat16))
        buffer.update_({"half": torch.zeros(12, dtype=torch.bfloat16)})
        column = buffer.storage[:]["next", "reward"]
        column += 2
        column.mul_(3)
        column[2:4, 0] = 5
        torch.add(column, 1, out=column)
        buffer.storage[:]["next", "done"].fill_(True)
        buffer[3:5] = TensorDict({"half": torch.ones(2, dtype=torch.bfloat16)}, [2])
        buffer[5] = TensorDict({"next": {"done": torch.zeros(1, dtype=torch.bool)}}, [])
    same(stock[:].clone(), ours[:].clone())
    whole = ours[:].clone()
    for write in (
        lambda: ours.set_at_("observation", torch.zeros(1, 3), [1]),
        lambda: ours.set_("observation", torch.zeros(12, 3)),
        lambda: ours.update_({"observation": torch.zeros(12, 3)}),
        lambda: ours[:]["observation"].add_(1),
        lambda: torch.zeros(12, 3, out=ours[:]["observation"]),
        lambda: ours.__setitem__(slice(0, 2), steps(2)),
        lambda: ours.storage.set(3, steps(1)[0]),
        lambda: ours.writer.write_at(torch.tensor([1, 2]), steps(2)),
    ):
        with pytest.raises(ImmutableFieldError):
            write()
    same(whole, ours[:].clone())


def test_a_writer_that_writes_over_rows_needs_all_keys_mutable() -> None:
    def make(storage: Any) -> Any:
        writer = TensorDictMaxValueWriter(rank_key=("next", "reward"))
        return TensorDictReplayBuffer(storage=storage, writer=writer, batch_size=4)

    stock = Pair(make, 6).stock
    ours = make(RingStorage(6, mutable=True))
    order = torch.tensor([5, 40, 2, 9, 3, 11, 1, 30, 30, 2, 8, 50])
    for buffer in (stock, ours):
        buffer.extend(steps(60)[order[:5]].clone())
        assert len(buffer) == 5
        buffer.extend(steps(60)[order[5:]].clone())
    same(stock[:].clone(), ours[:].clone())
    refused = make(RingStorage(3))
    refused.extend(steps(3)[torch.tensor([1, 0, 2])])
    with pytest.raises(ImmutableFieldError, match="mutable=True"):
        refused.extend(steps(1, 50))


@pytest.mark.parametrize("way", ["dumps", "state_dict"])
@pytest.mark.parametrize("rows", [7, 12, 31])
def test_torchrls_own_ways_to_save_bring_all_back(way: str, rows: int, tmp_path: Path) -> None:
    made = [tensordict_buffer(RingStorage(12)) for _ in range(2)]
    saved, loaded = made
    saved.extend(steps(rows))
    loaded.extend(steps(5, 900))
    if way == "dumps":
        saved.dumps(tmp_path / "buffer")
        loaded.loads(tmp_path / "buffer")
    else:
        loaded.load_state_dict(saved.state_dict())
    for turn in range(3):
        same(saved[:].clone(), loaded[:].clone())
        assert saved.writer._cursor == loaded.writer._cursor
        assert saved.storage._last_cursor_index == loaded.storage._last_cursor_index
        for buffer in made:
            buffer.extend(steps(5, 200 + turn))


def test_a_stock_storages_state_can_be_taken_over() -> None:
    pair = Pair(tensordict_buffer, 12)
    pair.stock.extend(steps(7))
    pair.ours.load_state_dict(pair.stock.state_dict())
    pair.both(lambda buffer: buffer[:].clone())


def test_a_flat_view_has_all_elements() -> None:
    pair = Pair(lambda s: ReplayBuffer(storage=s, batch_size=4), 12, ndim=2)
    pair.extend(steps(5, 0, (3,)).transpose(0, 1))
    pair.both(lambda buffer: buffer.storage.flatten()[:].clone())


def test_what_a_ring_cannot_keep_is_refused_by_name() -> None:
    for data, match in (
        (TensorDict({"text": NonTensorData("a", batch_size=[2])}, [2]), "text"),
        (TensorDict({}, [2]), "without tensors"),
        (({"a": torch.zeros(2)},), "dict"),
        (TensorDict({"a/b": torch.zeros(2), "a": {"b": torch.zeros(2)}}, [2]), "rename"),
        (TensorDict({"c": torch.zeros(2, dtype=torch.complex64)}, [2]), "c"),
    ):
        buffer = ReplayBuffer(storage=RingStorage(4), batch_size=2)
        with pytest.raises((SchemaError, KeyError), match=match):
            buffer.extend(data)
    buffer = ReplayBuffer(storage=RingStorage(8), batch_size=2)
    buffer.extend(steps(3))
    with pytest.raises(MissingFieldError, match="half"):
        buffer.extend(steps(2).exclude("half"))
    with pytest.raises(UnknownFieldError, match="extra"):
        buffer.extend(steps(2).set("extra", torch.zeros(2)))
    buffer.extend(steps(2, 3))
    assert buffer[:]["half"].tolist() == [0, 1, 2, 3, 4], "what was refused left a gap"
    assert buffer.write_count == 5
    with pytest.raises(UnknownFieldError, match="nothing"):
        ReplayBuffer(storage=RingStorage(8, mutable=["nothing"])).extend(steps(1))
    for copying in (pickle.dumps, copy.deepcopy):
        with pytest.raises(ConfigError, match="one process"):
            copying(buffer.storage)
