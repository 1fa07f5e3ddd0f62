"""Hindsight replay buffers through a snapshot: the same rows, episodes, infos and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from sb3_her_pairs import LANES, STEPS, HerPair, assert_same_buffers

from pyengine import SnapshotEngine
from pyengine.errors import StateMismatchError

INFOS = {"copy_info_dict": True}


def save(run_dir: Path, pair: HerPair) -> None:
    with SnapshotEngine(run_dir) as engine:
        engine.track(**pair.adoption.objects).restore()
        engine.snapshot(1).wait(30)


def resume(run_dir: Path, pair: HerPair, **options: Any) -> SnapshotEngine:
    """Put a fresh adopted buffer into the pair and restore it."""
    pair.renew()
    engine = SnapshotEngine(run_dir)
    assert engine.track(**pair.adoption.objects).restore(**options)
    return engine


@pytest.mark.parametrize("options", [{}, INFOS], ids=["bare", "infos"])
@pytest.mark.parametrize("rows", [0, 7, STEPS, STEPS + 2, 2 * STEPS + 15])
def test_a_restored_buffer_goes_on_as_stocks_does(
    options: dict[str, Any], rows: int, tmp_path: Path
) -> None:
    pair = HerPair(**options)
    pair.add(rows)
    save(tmp_path / "run", pair)
    assert ("replay_infos" in pair.adoption.objects) is bool(options)
    with resume(tmp_path / "run", pair) as engine:
        for more in (0, 1, 9, STEPS):
            pair.add(more)
            assert_same_buffers(pair)
        assert pair.ring.env is pair.env
        engine.snapshot(2).wait(30)


@pytest.mark.parametrize("max_steps", [9, 10, 25])
def test_episodes_longer_than_the_buffer_go_on(max_steps: int, tmp_path: Path) -> None:
    for rows in range(5, 45, 5):
        pair = HerPair(10, max_steps=max_steps, **INFOS)
        pair.add(rows)
        save(tmp_path / str(rows), pair)
        with resume(tmp_path / str(rows), pair):
            for more in (0, 7, 12):
                pair.add(more)
                # What is noted at rows that cannot be sampled is of no use, and differs.
                is_sampled = pair.stock.ep_length > 0
                np.testing.assert_array_equal(pair.ring.ep_length, pair.stock.ep_length)
                pair.stock.ep_start[~is_sampled] = pair.ring.ep_start[~is_sampled]
                assert_same_buffers(pair)


def test_a_snapshot_is_not_larger_for_episodes_that_are_gone(tmp_path: Path) -> None:
    pair = HerPair(**INFOS)
    counts = []
    for _ in range(6):
        pair.add(40)
        state = pair.adoption.objects["replay_episodes"].get_state()
        infos = pair.adoption.objects["replay_infos"].get_state()
        values = max(len(column["values"]) for column in infos["columns"])
        counts.append((len(state["ended"]), values))
    assert max(counts) <= (LANES * STEPS, LANES * STEPS)


@pytest.mark.parametrize("rows", [9, 2 * STEPS + 3])
def test_the_newest_rows_alone_make_a_smaller_buffer(rows: int, tmp_path: Path) -> None:
    pair = HerPair(**INFOS)
    pair.add(rows)
    newest = [(pair.stock.pos - 6 + i) % STEPS for i in range(6)]
    lengths, infos = pair.stock.ep_length[newest], pair.stock.infos[newest]
    offsets = (np.array(newest)[:, None] - pair.stock.ep_start[newest]) % STEPS
    save(tmp_path / "run", pair)
    with resume(tmp_path / "run", pair, replay_last=6 * LANES):
        assert (pair.ring.pos, pair.ring.full) == (6, False)
        # Episodes whose beginning did not come back cannot be sampled.
        is_whole = offsets <= np.arange(6)[:, None]
        np.testing.assert_array_equal(pair.ring.ep_length[:6], np.where(is_whole, lengths, 0))
        np.testing.assert_equal(pair.ring.infos[:6].tolist(), infos.tolist())
        assert not pair.ring.ep_length[6:].any()
        for _ in range(3 * STEPS):
            pair.add(1)
            check_episodes(pair.ring)
        assert sorted(pair.ring.ep_length.flat) == sorted(pair.stock.ep_length.flat)


def check_episodes(buffer: Any) -> None:
    """Assert that each row that can be sampled lies in its episode, which ends once, at its end."""
    for step, lane in zip(*np.nonzero(buffer.ep_length), strict=True):
        length = buffer.ep_length[step, lane]
        offset = (step - buffer.ep_start[step, lane]) % buffer.buffer_size
        assert offset < length
        rows = (buffer.ep_start[step, lane] + np.arange(length)) % buffer.buffer_size
        ends = buffer.dones[rows, lane]
        assert ends[-1]
        assert not ends[:-1].any()


def test_a_restore_without_rows_leaves_an_empty_buffer(tmp_path: Path) -> None:
    pair = HerPair(**INFOS)
    pair.add(STEPS + 3)
    save(tmp_path / "run", pair)
    with resume(tmp_path / "run", pair, replay="skip"):
        pair.stock = pair.make()
        for more in (0, 5, STEPS):
            pair.add(more)
            assert_same_buffers(pair)


@pytest.mark.parametrize("rows", [10, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS + 2])
def test_a_closed_episode_is_whole_and_the_next_begins_at_the_next_row(
    rows: int, tmp_path: Path
) -> None:
    pair = HerPair(**INFOS)
    pair.add(rows)
    save(tmp_path / "run", pair)
    with resume(tmp_path / "run", pair):
        pair.adoption.close_open_episode()
        check_episodes(pair.ring)
        assert (pair.ring._current_ep_start == pair.ring.pos).all()
        assert pair.ring.ep_length.max() <= 4, "no episode exceeds the limit"
        # Another run of the environments: the first row after is the first of an episode.
        other = HerPair(seed=2, **INFOS)
        other.stock, other.ring = pair.ring, pair.make()
        for _ in range(STEPS + 5):
            other.add(1)
            check_episodes(pair.ring)
            assert pair.ring.ep_length.max() <= 4


def test_a_buffer_of_another_size_is_refused(tmp_path: Path) -> None:
    pair = HerPair()
    pair.add(9)
    save(tmp_path / "run", pair)
    smaller = HerPair(20)
    with SnapshotEngine(tmp_path / "run") as engine:
        engine.track(**smaller.adoption.objects)
        with pytest.raises(StateMismatchError, match="capacity: 40 here, 60 there"):
            engine.restore()
    assert smaller.ring.pos == 0


@pytest.mark.parametrize(
    "damage",
    [
        {"open": np.zeros(3, np.int64)},
        {"ended": np.zeros((2, 2), np.int64)},
        {"ended": np.array([[9, -4, 0]])},
        {"ended": np.array([[9, 400, 0]])},
        {"ended": np.array([[9, 4, 7]])},
    ],
)
def test_episodes_of_another_buffer_are_refused_before_a_change(
    damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = HerPair()
    pair.add(9)
    episodes = pair.adoption.objects["replay_episodes"]
    state = {**episodes.get_state(), **damage}
    monkeypatch.setattr(episodes, "get_state", lambda: state)
    save(tmp_path / "run", pair)
    pair.renew()
    with SnapshotEngine(tmp_path / "run") as engine:
        engine.track(**pair.adoption.objects)
        with pytest.raises(StateMismatchError, match="replay_episodes"):
            engine.restore()
    assert pair.ring.pos == 0
