"""Replay buffers of classes that no ring can follow: copied whole, back in place."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sb3_pairs import (
    BOX,
    BY_NAME,
    STEPS,
    Case,
    arrays_of,
    assert_same_batch,
    assert_same_draws,
    make_pair,
)
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from test_sb3_replay import resume, save

from pyengine import SnapshotEngine
from pyengine.errors import StateMismatchError
from pyengine.integrations.sb3.buffers import adopt


class Counted(ReplayBuffer):
    """A user's class: it rewrites rows, and holds plain values and something that is none."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.priorities = np.ones((self.buffer_size, self.n_envs), np.float64)
        self.recent: deque[float] = deque(maxlen=3)
        self.added = {"count": 0}
        self.opened = open(__file__)  # noqa: SIM115  the tests close it

    def add(self, *step: Any) -> None:
        self.priorities[self.pos] = self.added["count"]
        self.recent.append(float(step[3][0]))
        self.added["count"] += 1
        super().add(*step)
        self.rewards[:] *= 0.5


def test_a_class_that_is_not_known_is_copied_and_says_so(tmp_path: Path) -> None:
    pair = make_pair(Case("counted", Counted, BOX, n_envs=2))
    assert type(pair.ring) is Counted
    size = sum(array.nbytes for array in arrays_of(pair.ring).values()) + STEPS * 2 * 8
    cost, left_out = pair.adoption.notes
    assert "Counted" in cost
    assert f"{size} bytes" in cost
    assert "NOT saved" in left_out
    assert left_out.endswith(": opened")
    pair.add(STEPS + 5)
    save(tmp_path / "run", pair.adoption)
    with resume(tmp_path / "run", pair):
        for more in (0, 5):
            pair.add(more)
            assert_same_draws(pair.stock, pair.ring)
            for name in ("priorities", "recent", "added", "pos", "full"):
                np.testing.assert_equal(getattr(pair.ring, name), getattr(pair.stock, name))
        assert pair.ring.recent.maxlen == 3
    for buffer in (pair.stock, pair.ring):
        buffer.opened.close()


def test_copied_arrays_come_back_in_place(tmp_path: Path) -> None:
    case = Case("sub", type("Sub", (ReplayBuffer,), {}), BOX)
    pair = make_pair(case)
    pair.add(5)
    save(tmp_path / "run", pair.adoption)
    pair.model.replay_buffer = pair.ring = case.make()
    held = arrays_of(pair.ring)
    with SnapshotEngine(tmp_path / "run") as engine:
        engine.track(**adopt(pair.model).objects).restore()
    for name, array in arrays_of(pair.ring).items():
        assert array is held[name]
    assert_same_draws(pair.stock, pair.ring)


def test_a_copied_buffer_of_another_shape_is_refused_untouched(tmp_path: Path) -> None:
    kind = type("Sub", (ReplayBuffer,), {})
    pair = make_pair(Case("sub", kind, BOX))
    pair.add(5)
    save(tmp_path / "run", pair.adoption)
    for case, steps, given, saved in (
        (Case("sub", kind, BOX, BOX), STEPS, "float32[12, 1, 3]", "float32[12, 1, 2]"),
        (pair.case, STEPS - 1, "11", "12"),
    ):
        other = make_pair(case, steps)
        with SnapshotEngine(tmp_path / "run") as engine:
            engine.track(**other.adoption.objects)
            with pytest.raises(StateMismatchError) as caught:
                engine.restore()
        assert f"is {given}, the snapshot's is {saved};" in str(caught.value)
        assert other.ring.pos == 0
        assert not other.ring.observations.any()


def test_a_dict_buffer_of_a_users_class_is_copied_whole(tmp_path: Path) -> None:
    kind = type("Sub", (DictReplayBuffer,), {})
    pair = make_pair(Case("sub", kind, BY_NAME["dict"].seen, n_envs=2))
    pair.add(STEPS + 1)
    save(tmp_path / "run", pair.adoption)
    with resume(tmp_path / "run", pair):
        np.random.seed(0)
        expected = pair.stock.sample(32)
        np.random.seed(0)
        assert_same_batch(expected, pair.ring.sample(32))
