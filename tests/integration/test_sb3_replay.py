"""Replay buffers of Stable-Baselines3 through a snapshot: the same rows, the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sb3_pairs import (
    BOX,
    BY_NAME,
    CASES,
    STEPS,
    Case,
    Pair,
    arrays_of,
    assert_same_draws,
    make_pair,
)
from stable_baselines3.common.buffers import ReplayBuffer

from pyengine import SnapshotEngine
from pyengine.errors import StateMismatchError
from pyengine.integrations.sb3.buffers import Adoption, adopt


def save(run_dir: Path, adoption: Adoption) -> None:
    with SnapshotEngine(run_dir) as engine:
        engine.track(**adoption.objects).restore()
        engine.snapshot(1).wait(30)


def resume(run_dir: Path, pair: Pair, **options: Any) -> SnapshotEngine:
    """Put a fresh adopted buffer into the pair and restore it."""
    pair.model.replay_buffer = pair.ring = pair.case.make(pair.stock.buffer_size)
    pair.adoption = adopt(pair.model)
    engine = SnapshotEngine(run_dir)
    assert engine.track(**pair.adoption.objects).restore(**options)
    return engine


@pytest.mark.parametrize(
    ("case", "rows"),
    [
        *((case, 2 * STEPS + 3) for case in CASES),
        *(
            (BY_NAME[name], rows)
            for name in ("overlap", "n-step", "dict")
            for rows in (0, 5, STEPS)
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else str(value),
)
def test_a_restored_buffer_goes_on_as_stocks_does(case: Case, rows: int, tmp_path: Path) -> None:
    pair = make_pair(case)
    pair.add(rows)
    save(tmp_path / "run", pair.adoption)
    with resume(tmp_path / "run", pair) as engine:
        assert (pair.ring.pos, pair.ring.full) == (pair.stock.pos, pair.stock.full)
        for name, array in arrays_of(pair.stock).items():
            np.testing.assert_array_equal(np.asarray(arrays_of(pair.ring)[name]), array)
        for more in (0, 4, STEPS):
            pair.add(more)
            if pair.stock.size():
                assert_same_draws(pair.stock, pair.ring)
        engine.snapshot(2).wait(30)


@pytest.mark.parametrize("name", ["overlap", "n-step", "box"])
def test_marks_and_an_emptied_buffer_come_back(name: str, tmp_path: Path) -> None:
    pair = make_pair(BY_NAME[name])
    pair.add(STEPS + 2)
    pair.stock.reset()
    pair.ring.reset()
    pair.add(7)
    for buffer in (pair.stock, pair.ring):
        buffer.dones[3] = 1
        buffer.dones[5] = 0
    save(tmp_path / "run", pair.adoption)
    with resume(tmp_path / "run", pair):
        assert_same_draws(pair.stock, pair.ring)
        for more in (4, STEPS):
            pair.add(more)
            assert_same_draws(pair.stock, pair.ring)


@pytest.mark.parametrize("name", ["box-3-envs", "overlap", "n-step"])
def test_the_newest_rows_alone_make_a_smaller_buffer(name: str, tmp_path: Path) -> None:
    pair = make_pair(BY_NAME[name])
    pair.add(2 * STEPS + 3)
    held = {key: np.asarray(column) for key, column in arrays_of(pair.ring).items()}
    newest = [(pair.ring.pos - 4 + i) % STEPS for i in range(4)]
    save(tmp_path / "run", pair.adoption)
    with resume(tmp_path / "run", pair, replay_last=4 * pair.case.n_envs):
        assert (pair.ring.pos, pair.ring.full, pair.ring.size()) == (4, False, 4)
        for key, column in arrays_of(pair.ring).items():
            np.testing.assert_array_equal(column[:4], held[key][newest])
            if key != "observations" or name != "overlap":
                assert not column[4:].any()
        pair.ring.sample(64)
        pair.add(2 * STEPS)
        assert pair.ring.full
        for key, column in arrays_of(pair.ring).items():
            steps = [(pair.ring.pos + i) % STEPS for i in range(STEPS)]
            theirs = [(pair.stock.pos + i) % STEPS for i in range(STEPS)]
            expected = arrays_of(pair.stock)[key][theirs]
            np.testing.assert_array_equal(column[steps], expected)


def test_a_restore_without_rows_leaves_an_empty_buffer(tmp_path: Path) -> None:
    pair = make_pair(BY_NAME["overlap"])
    pair.add(STEPS + 3)
    pair.adoption.close_open_episode()
    save(tmp_path / "run", pair.adoption)
    with resume(tmp_path / "run", pair, replay="skip"):
        assert (pair.ring.pos, pair.ring.full) == (0, False)
        pair.stock.reset()
        for more in (5, STEPS):
            pair.add(more)
            assert_same_draws(pair.stock, pair.ring)


def test_another_buffer_is_refused_by_both_names(tmp_path: Path) -> None:
    pair = make_pair(BY_NAME["box"])
    pair.add(STEPS)
    save(tmp_path / "run", pair.adoption)
    others: list[tuple[Case, int, tuple[str, ...]]] = [
        (BY_NAME["box"], STEPS - 2, ("capacity: 10 here, 12 there",)),
        (BY_NAME["box-3-envs"], 4, ("num_envs: 3 here, 1 there",)),
        (BY_NAME["images"], STEPS, ("capacity: 24 here, 12 there",)),
        (BY_NAME["overlap"], STEPS, ("next_observations",)),
        (Case("wide", ReplayBuffer, BOX, BOX), STEPS, ("[3] here", "[2] there")),
    ]
    for case, steps, texts in others:
        other = make_pair(case, steps)
        with SnapshotEngine(tmp_path / "run") as engine:
            engine.track(**other.adoption.objects)
            with pytest.raises(StateMismatchError) as caught:
                engine.restore()
        for text in texts:
            assert text in str(caught.value)
        assert other.ring.size() == 0
