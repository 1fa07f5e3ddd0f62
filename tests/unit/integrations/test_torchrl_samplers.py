"""What samplers and writers carry is given and taken; unknown ones are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrl")

import torch
from torchrl.data import RandomSampler, ReplayBuffer, RoundRobinWriter, SliceSampler
from torchrl.data import TensorDictReplayBuffer as Buffer
from torchrl.data.replay_buffers import samplers, writers
from torchrl_pairs import same, steps

from pyengine.errors import ConfigError, ModelStateError, StateMismatchError
from pyengine.integrations.torchrl import RingStorage
from pyengine.integrations.torchrl.buffers import BufferState
from pyengine.integrations.torchrl.samplers import SamplerState

CAPACITY = 12


class Tree:
    """A slow sum or min tree with the interface of torchrl's native ones."""

    def __init__(self, size: int, combine: Any, neutral: float) -> None:
        self._combine, self._neutral = combine, neutral
        self._width = 1 << (size - 1).bit_length()
        self._nodes = torch.full((2 * self._width,), neutral, dtype=torch.float32)

    def __setitem__(self, index: Any, values: Any) -> None:
        index = torch.as_tensor(index).reshape(-1)
        for place, value in zip(
            index.tolist(), torch.as_tensor(values).expand(len(index)), strict=True
        ):
            node = place + self._width
            self._nodes[node] = value
            while node > 1:
                node //= 2
                pair = self._nodes[2 * node], self._nodes[2 * node + 1]
                self._nodes[node] = self._combine(*pair)

    def __getitem__(self, index: Any) -> Any:
        return self._nodes[torch.as_tensor(index) + self._width]

    def query(self, begin: int, end: int) -> float:
        found = torch.tensor(self._neutral)
        for value in self._nodes[self._width + begin : self._width + end]:
            found = self._combine(found, value)
        return float(found)

    def scan_lower_bound(self, mass: Any) -> torch.Tensor:
        cumulated = torch.cumsum(self._nodes[self._width :].double(), 0)
        return torch.searchsorted(cumulated, torch.as_tensor(mass).double())


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrl's extension need not load beside this torch: its trees are arithmetic, no more."""
    names = samplers.PrioritizedSampler._init.__globals__
    for width in ("Fp32", "Fp64"):
        monkeypatch.setitem(names, f"SumSegmentTree{width}", lambda n: Tree(n, torch.add, 0.0))
        monkeypatch.setitem(
            names, f"MinSegmentTree{width}", lambda n: Tree(n, torch.minimum, float("inf"))
        )


@pytest.mark.usefixtures("trees")
@pytest.mark.parametrize("rows", [7, 30])
@pytest.mark.parametrize("within_buffer", [False, True])
def test_a_prioritised_sampler_draws_on(rows: int, within_buffer: bool) -> None:
    def make() -> Any:
        return samplers.PrioritizedSampler(
            CAPACITY, 0.7, 0.5, max_priority_within_buffer=within_buffer
        )

    storage = RingStorage(CAPACITY)
    buffer = Buffer(storage=storage, sampler=make(), batch_size=32)
    for first in range(0, rows, 5):
        buffer.extend(steps(5, first))
        index = torch.arange(min(first + 5, CAPACITY))
        buffer.update_priority(index, torch.rand(len(index)))
    buffer.sampler.beta = 0.8
    saved = SamplerState(buffer.sampler).get_state()
    fresh = make()
    state = SamplerState(fresh)
    state.check_state(saved)
    state.set_state(saved)
    assert fresh.beta == 0.8
    assert torch.equal(fresh._sum_tree._nodes, buffer.sampler._sum_tree._nodes)
    assert torch.equal(fresh._min_tree._nodes, buffer.sampler._min_tree._nodes)
    for seed in range(20):
        drawn = []
        for sampler in (buffer.sampler, fresh):
            np.random.seed(seed)
            drawn.append(sampler.sample(storage, 500))
            sampler.update_priority(torch.tensor([seed % 7, 3]), torch.tensor([0.3, seed / 2]))
            sampler.mark_update(torch.tensor([1]))
        same(drawn[0], drawn[1])
        assert buffer.sampler.default_priority == fresh.default_priority
    other = SamplerState(samplers.PrioritizedSampler(CAPACITY + 1, 0.7, 0.5))
    with pytest.raises(StateMismatchError, match="does not fit"):
        other.check_state(saved)


@pytest.mark.usefixtures("trees")
def test_a_prioritised_sampler_that_was_never_used_is_as_made() -> None:
    fresh = samplers.PrioritizedSampler(CAPACITY, 0.7, 0.5)
    saved = SamplerState(samplers.PrioritizedSampler(CAPACITY, 0.7, 0.5)).get_state()
    SamplerState(fresh).set_state(saved)
    assert fresh.default_priority == 1.0
    assert float(fresh._min_tree._nodes[1]) == float("inf")


def test_torchrls_own_trees_draw_on() -> None:
    try:
        sampler = samplers.PrioritizedSampler(CAPACITY, 0.7, 0.5)
    except RuntimeError:
        pytest.skip("torchrl's C++ extension does not load beside this torch")
    storage = RingStorage(CAPACITY)
    buffer = Buffer(storage=storage, sampler=sampler, batch_size=32)
    buffer.extend(steps(20))
    buffer.update_priority(torch.arange(CAPACITY), torch.rand(CAPACITY))
    fresh = samplers.PrioritizedSampler(CAPACITY, 0.7, 0.5)
    SamplerState(fresh).set_state(SamplerState(sampler).get_state())
    drawn = []
    for one in (sampler, fresh):
        np.random.seed(1)
        drawn.append(one.sample(storage, 10_000))
    same(drawn[0], drawn[1])


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_order_without_replacement_goes_on(drop_last: bool) -> None:
    storage = RingStorage(CAPACITY)
    made = samplers.SamplerWithoutReplacement(drop_last=drop_last)
    buffer = Buffer(storage=storage, sampler=made, batch_size=5)
    buffer.extend(steps(20))
    buffer.sample()
    fresh = samplers.SamplerWithoutReplacement(drop_last=drop_last)
    SamplerState(fresh).set_state(SamplerState(made).get_state())
    for _ in range(6):
        drawn = []
        for sampler in (made, fresh):
            torch.manual_seed(2)
            drawn.append(sampler.sample(storage, 5))
            drawn[-1] += (sampler.ran_out, sampler._remaining_batches)
        same(drawn[0], drawn[1])


def test_stamps_of_a_writer_come_back() -> None:
    def make() -> Any:
        return Buffer(
            storage=RingStorage(CAPACITY),
            writer=writers.TensorDictRoundRobinWriter(track_generations=True),
            batch_size=4,
        )

    saved, fresh = make(), make()
    state, target = BufferState(saved), BufferState(fresh)
    saved.extend(steps(30))
    fresh.extend(steps(12))
    target.set_state(state.get_state())
    index = torch.arange(CAPACITY)
    assert torch.equal(saved.writer.generations_of(index), fresh.writer.generations_of(index))
    assert fresh.writer._cursor == saved.writer._cursor
    assert fresh.write_count == 30


class Own(RandomSampler):
    """A sampler that says what it carries."""

    def __init__(self) -> None:
        self.count = 0

    def get_state(self) -> int:
        return self.count

    def set_state(self, state: int) -> None:
        self.count = state


def test_a_sampler_with_a_state_of_its_own_is_asked() -> None:
    made, fresh = Own(), Own()
    made.count = 7
    state = SamplerState(fresh)
    state.check_state(SamplerState(made).get_state())
    state.set_state(SamplerState(made).get_state())
    assert fresh.count == 7
    with pytest.raises(StateMismatchError):
        SamplerState(RandomSampler()).check_state(SamplerState(made).get_state())


def test_parts_that_are_not_known_are_refused_before_anything() -> None:
    class Mine(RandomSampler):
        pass

    class MyWriter(RoundRobinWriter):
        pass

    def buffer(**parts: Any) -> Any:
        return ReplayBuffer(**{"storage": RingStorage(9), "batch_size": 4, **parts})

    for made, match in (
        (buffer(sampler=Mine()), "get_state"),
        (buffer(sampler=samplers.ConsumingSampler()), "ConsumingSampler"),
        (
            buffer(
                sampler=SliceSampler(
                    slice_len=2, traj_key="episode", step_key="step", fragmented=True
                )
            ),
            "fragmented=False",
        ),
        (buffer(writer=MyWriter()), "MyWriter"),
        (buffer(writer=writers.TensorDictMaxValueWriter()), "mutable=True"),
        (ReplayBuffer(batch_size=4), "RingStorage"),
        (buffer(shared=True), "shared"),
    ):
        with pytest.raises(ConfigError, match=match):
            BufferState(made)
    held = buffer()
    held.extend(torch.zeros(3))
    with pytest.raises(ModelStateError, match="3 elements"):
        BufferState(held)


@pytest.mark.parametrize("part", ["sampler", "writer", "storage", "generator"])
def test_a_part_that_was_replaced_is_found(part: str) -> None:
    buffer = Buffer(storage=RingStorage(CAPACITY), batch_size=4)
    state = BufferState(buffer)
    state.check_parts()
    replace = {
        "sampler": lambda: buffer.set_sampler(RandomSampler()),
        "writer": lambda: buffer.set_writer(writers.TensorDictRoundRobinWriter()),
        "storage": lambda: buffer.set_storage(RingStorage(CAPACITY)),
        "generator": lambda: buffer.set_rng(torch.Generator()),
    }
    replace[part]()
    with pytest.raises(ConfigError, match="was replaced"):
        state.get_state()
