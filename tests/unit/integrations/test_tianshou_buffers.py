"""A buffer in a ring does what the library's does: same places, same draws, same batches."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tianshou")

from tianshou.data import (
    Batch,
    CachedReplayBuffer,
    HERReplayBuffer,
    HERVectorReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)

from pyengine.errors import ConfigError, FieldShapeError, ImmutableFieldError, StateMismatchError
from pyengine.integrations.tianshou.buffers import Adoption, adopt
from pyengine.integrations.tianshou.buffers.layout import leaves
from pyengine.integrations.tianshou.buffers.trees import fill_tree, leaves_of

PRIORITIES = {"alpha": 0.6, "beta": 0.4}
HER = {
    "compute_reward_fn": lambda got, goal: -np.abs(got - goal).sum(axis=-1),
    "horizon": 5,
    "future_k": 3.0,
}

MAKERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: ReplayBuffer(11),
    "plain of one row": lambda: ReplayBuffer(1),
    "without obs_next": lambda: ReplayBuffer(13, ignore_obs_next=True, stack_num=3),
    "available stacks only": lambda: ReplayBuffer(13, stack_num=3, sample_avail=True),
    "vector": lambda: VectorReplayBuffer(31, 3),
    "vector without obs_next": lambda: VectorReplayBuffer(30, 3, ignore_obs_next=True, stack_num=2),
    "prioritized": lambda: PrioritizedReplayBuffer(13, **PRIORITIES),
    "prioritized vector": lambda: PrioritizedVectorReplayBuffer(30, 3, **PRIORITIES),
    "hindsight": lambda: HERReplayBuffer(14, **HER),
    "hindsight vector": lambda: HERVectorReplayBuffer(42, 3, **HER),
    "hindsight without obs_next": lambda: HERVectorReplayBuffer(42, 3, ignore_obs_next=True, **HER),
}


def step(draw: np.random.Generator, lanes: list[int] | None, number: int) -> Any:
    """Return what a collector adds for these lanes; None: what a script adds, without an axis."""
    lead = () if lanes is None else (len(lanes),)
    goals = {name: draw.normal(size=(*lead, 2)) for name in ("achieved_goal", "desired_goal")}
    terminated = draw.random(lead) < 0.15
    row = Batch(
        obs=Batch(observation=draw.normal(size=(*lead, 3)).astype("f4"), **goals),
        act=draw.integers(0, 4, lead),
        rew=draw.normal(size=lead),
        terminated=terminated,
        truncated=~terminated & (draw.random(lead) < 0.1),
        obs_next=Batch(observation=draw.normal(size=(*lead, 3)).astype("f4"), **goals),
        info=Batch(number=np.full(lead, number), env_id=np.zeros(lead, int)),
        policy=Batch(),
    )
    if number > 4 and number % 3 == 0:
        row.info.late = np.full(lead, float(number))
    return row


def lanes_of(buffer: Any, draw: np.random.Generator) -> list[int] | None:
    """Return some of the lanes, mostly all; None for a plain buffer half of the time."""
    count = getattr(buffer, "buffer_num", 1)
    if count == 1:
        return None if draw.random() < 0.5 else [0]
    if draw.random() < 0.7:
        return list(range(count))
    return sorted(draw.choice(count, draw.integers(1, count), replace=False).tolist())


def fed(buffer: Any, steps: int, seed: int = 1, first: int = 0) -> Any:
    draw = np.random.default_rng(seed)
    for number in range(first, first + steps):
        lanes = lanes_of(buffer, draw)
        buffer.add(step(draw, lanes, number), buffer_ids=lanes)
    return buffer


def same(one: Any, other: Any) -> None:
    """Assert that two values, or batches of them, are equal bit for bit."""
    if isinstance(one, Batch):
        assert one.keys() == other.keys()
        for key in one.get_keys():
            same(one[key], other[key])
    else:
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def compare(ours: Any, stock: Any, draws: int = 3) -> None:
    """Assert that two buffers are the same, and draw the same from the same generators."""
    assert len(ours) == len(stock)
    same(ours.unfinished_index(), stock.unfinished_index())
    for size in (4, 0, 9)[:draws]:
        np.random.seed(size)
        batch, indices = ours.sample(size)
        after = np.random.random()
        np.random.seed(size)
        expected, places = stock.sample(size)
        assert np.random.random() == after
        same(indices, places)
        same(batch, expected)
        same(ours.prev(indices), stock.prev(indices))
        same(ours.next(indices), stock.next(indices))
        if hasattr(stock, "update_weight") and size == 4:
            weights = np.linspace(0.1, 3, len(indices)).astype("f4")
            ours.update_weight(indices, weights)
            stock.update_weight(places, weights)
            same(ours.weight._value, stock.weight._value)
    np.random.seed(0)
    ours_null = ours.hasnull()
    np.random.seed(0)
    assert ours_null == stock.hasnull()


@pytest.fixture(params=MAKERS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any, Adoption]]:
    """An adopted buffer, a stock one, and the adoption."""
    ours, stock = MAKERS[request.param](), MAKERS[request.param]()
    adoption = adopt(ours, keeps_rows=True)
    yield ours, stock, adoption
    adoption.release()


def test_it_does_what_the_library_does(pair: Any) -> None:
    ours, stock, _ = pair
    for round_number in range(5):
        for one in (ours, stock):
            fed(one, 7, seed=round_number, first=7 * round_number)
        compare(ours, stock)
    for one in (ours, stock):
        one.reset(keep_statistics=True)
        fed(one, 9, seed=9)
    if hasattr(stock, "weight"):  # stock's goes on drawing rows that are gone
        assert set(ours.sample_indices(50)) <= set(ours.sample_indices(0))
    else:
        compare(ours, stock)


def test_rows_it_had_before_move_into_the_ring() -> None:
    for make in MAKERS.values():
        for steps in (9, 40):
            ours, stock = fed(make(), steps), fed(make(), steps)
            adoption = adopt(ours, keeps_rows=True)
            compare(ours, stock)
            fed(ours, 5, seed=2, first=50)
            fed(stock, 5, seed=2, first=50)
            compare(ours, stock)
            adoption.release()


def test_what_leaves_the_process_is_a_stock_buffer(pair: Any, tmp_path: Path) -> None:
    ours, stock, adoption = pair
    for one in (ours, stock):
        fed(one, 17)
    ways: list[Callable[[Any], Any]] = [copy.deepcopy]
    if not hasattr(stock, "_restore_cache"):  # a function of the script's is in the others

        def by_hdf5(one: Any) -> Any:
            one.save_hdf5(str(tmp_path / "buffer.hdf5"))
            return type(stock).load_hdf5(str(tmp_path / "buffer.hdf5"))

        ways += [lambda one: pickle.loads(pickle.dumps(one)), by_hdf5]
    for way in ways:
        made = way(ours)
        assert type(made) is type(stock)
        compare(made, way(stock))
    adoption.release()
    assert type(ours) is type(stock)
    compare(ours, stock)


def test_hindsight_leaves_the_rows_as_they_were() -> None:
    buffer = HERVectorReplayBuffer(42, 3, **HER)
    adoption = adopt(buffer, keeps_rows=True)
    fed(buffer, 30)
    rows = buffer.rows
    at = np.arange(42)
    before = {name: rows.ring.rows_at(name, at) for name in rows.fields}
    seen = np.asarray(buffer.obs.desired_goal)
    buffer.sample(8)
    assert not np.array_equal(np.asarray(buffer.obs.desired_goal), seen), "it laid nothing over"
    for name, values in before.items():
        same(rows.ring.rows_at(name, at), values)
    fed(buffer, 1, seed=4, first=30)
    assert not any(overlay._laid for overlay in rows._overlays)
    adoption.release()


def test_a_tree_made_from_its_leaves_is_the_one_that_was() -> None:
    draw = np.random.default_rng(0)
    for size in (1, 2, 13, 1000):
        buffer = PrioritizedReplayBuffer(size, **PRIORITIES)
        for _ in range(20):
            at = draw.integers(0, size, 7)
            buffer.weight[at] = draw.random(7) ** 3
        other = PrioritizedReplayBuffer(size, **PRIORITIES)
        fill_tree(other.weight, leaves_of(buffer.weight).copy())
        same(other.weight._value, buffer.weight._value)


def test_rows_do_not_change() -> None:
    buffer = fed(VectorReplayBuffer(30, 3), 5)
    adoption = adopt(buffer, keeps_rows=True)
    with pytest.raises(ImmutableFieldError, match="do not change"):
        buffer.obs.observation[2] = 0
    with pytest.raises(ImmutableFieldError, match="act"):
        buffer.set_array_at_key(np.zeros(30), "act")
    with pytest.raises(ImmutableFieldError, match="set_batch"):
        buffer.set_batch(Batch())
    with pytest.raises(ImmutableFieldError, match="dropnull"):
        buffer.dropnull()
    row = step(np.random.default_rng(0), [0, 1, 2], 1)
    row.obs.observation = np.zeros((3, 4))
    with pytest.raises(FieldShapeError, match="obs/observation"):
        buffer.add(row, buffer_ids=[0, 1, 2])
    with pytest.raises(StateMismatchError, match="cursor"):  # the library has moved it already
        fed(buffer, 1)
    buffer.rew[2] += 1
    with pytest.raises(ImmutableFieldError, match="rew: row 2 was changed"):
        adoption.objects["replay_cursors"].get_state()
    adoption.release()


def test_values_of_ones_own_lie_beside_the_rows() -> None:
    buffer, stock = (fed(VectorReplayBuffer(30, 3), 5) for _ in range(2))
    adoption = adopt(buffer, keeps_rows=True)
    for one in (buffer, stock):
        one.set_array_at_key(np.arange(4.0), "returns", index=[0, 1, 10, 20], default_value=0.0)
    same(buffer[[0, 10, 11]].returns, stock[[0, 10, 11]].returns)
    assert adoption.extras() == ["returns"]
    adoption.release()
    same(buffer[[0, 10, 11]].returns, stock[[0, 10, 11]].returns)


def test_nan_is_found_as_long_as_it_is_there() -> None:
    buffer = VectorReplayBuffer(9, 3)
    adoption = adopt(buffer, keeps_rows=True)
    draw = np.random.default_rng(0)
    row = step(draw, [1], 0)
    row.obs.observation[0, 1] = np.nan
    buffer.add(row, buffer_ids=[1])
    for number in range(4):
        assert buffer.hasnull() == (number < 3)
        buffer.add(step(draw, [0, 1, 2], number), buffer_ids=[0, 1, 2])
    adoption.release()


def test_an_episode_cut_off_joins_no_other() -> None:
    buffer = VectorReplayBuffer(9, 3)
    adoption = adopt(buffer, keeps_rows=True)
    draw = np.random.default_rng(0)
    row = step(draw, [0, 1, 2], 0)
    row.terminated[:] = [True, False, False]
    row.truncated[:] = False
    buffer.add(row, buffer_ids=[0, 1, 2])
    adoption.close_open_episodes()
    at = [0, 3, 6]
    assert buffer.done[at].all()
    assert buffer.terminated[at].tolist() == [True, False, False]
    assert buffer.truncated[at].tolist() == [False, True, True]
    assert [lane._ep_len for lane in buffer.buffers] == [0, 0, 0]
    buffer.add(step(draw, [0, 1, 2], 1), buffer_ids=[0, 1, 2])
    assert buffer.next(np.array(at)).tolist() == at
    state = adoption.objects["replay_cursors"].get_state()
    assert state["rows"]["closed"].tolist() == [1, 2]
    adoption.release()


def test_what_is_not_known_stays_the_librarys() -> None:
    cached = CachedReplayBuffer(ReplayBuffer(10), 2, 5)
    assert adopt(cached, keeps_rows=True).late_objects() == {}
    assert type(cached) is CachedReplayBuffer
    plain = ReplayBuffer(10)
    assert adopt(plain, keeps_rows=False).late_objects() == {}
    assert type(plain) is ReplayBuffer
    adoption = adopt(plain, keeps_rows=True)
    with pytest.raises(ConfigError, match="already"):
        adopt(plain, keeps_rows=True)
    adoption.release()


def test_compiled_code_sees_the_arrays_that_it_was_compiled_for() -> None:
    ours, stock = (fed(VectorReplayBuffer(30, 3), 3) for _ in range(2))
    adoption = adopt(ours, keeps_rows=True)
    for name in ("rew", "done", "terminated", "truncated"):
        mine, theirs = getattr(ours, name), getattr(stock, name)
        assert type(mine) is np.ndarray
        assert (mine.dtype, mine.shape, mine.strides) == (
            theirs.dtype,
            theirs.shape,
            theirs.strides,
        )
        assert mine.flags.writeable
    adoption.release()


def test_keys_are_those_of_stock() -> None:
    ours, stock = VectorReplayBuffer(30, 3), VectorReplayBuffer(30, 3)
    adoption = adopt(ours, keeps_rows=True)
    fed(ours, 9)
    fed(stock, 9)
    assert {path for path, _ in leaves(ours._meta)} == {path for path, _ in leaves(stock._meta)}
    assert ours._meta.policy.keys() == stock._meta.policy.keys()
    adoption.release()
