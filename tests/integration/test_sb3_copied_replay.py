"""Replay buffers of classes that no ring can follow: copied whole, back in place."""

from __future__ import annotations

import itertools
from collections import deque
from pathlib import Path
from types import SimpleNamespace
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
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv
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


class HerPair:
    """HER buffers under the same steps of bit-flipping environments."""

    def __init__(self, **options: Any) -> None:
        self.env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=4, max_steps=4)] * 2)
        self.options = options
        self.stock, self.ring = self.make(), self.make()
        self._steps = self._run()

    def make(self, size: int = 60) -> HerReplayBuffer:
        return HerReplayBuffer(
            size, self.env.observation_space, self.env.action_space, self.env, "cpu",
            n_envs=2, **self.options,
        )  # fmt: skip

    def _run(self) -> Any:
        rng = np.random.default_rng(1)
        self.env.seed(1)
        seen: Any = self.env.reset()
        for number in itertools.count():
            action = rng.integers(0, 4, 2)
            following, reward, done, infos = self.env.step(action)
            for info in infos:
                info["number"] = number
            yield seen, following, action, reward, done, infos
            seen = following

    def add(self, count: int) -> None:
        for step in itertools.islice(self._steps, count):
            for buffer in (self.stock, self.ring):
                buffer.add(*(dict(part) if isinstance(part, dict) else part for part in step))


@pytest.mark.parametrize("options", [{}, {"copy_info_dict": True}], ids=["bare", "infos"])
@pytest.mark.parametrize("rows", [7, 30, 75])
def test_a_her_buffer_goes_on_as_stocks_does(
    options: dict[str, Any], rows: int, tmp_path: Path
) -> None:
    pair = HerPair(**options)
    adoption = adopt(SimpleNamespace(replay_buffer=pair.ring))
    assert "HerReplayBuffer" in adoption.notes[0]
    assert len(adoption.notes) == 1
    # A million empty dicts would be saved for nothing.
    held = adoption.objects["replay"].get_state()["values"]
    assert ("infos" in held) == bool(options)
    pair.add(rows)
    save(tmp_path / "run", adoption)
    pair.ring = pair.make()
    adoption = adopt(SimpleNamespace(replay_buffer=pair.ring))
    with SnapshotEngine(tmp_path / "run") as engine:
        assert engine.track(**adoption.objects).restore()
        for more in (0, 9, 30):
            pair.add(more)
            assert_same_draws(pair.stock, pair.ring)
            np.testing.assert_equal(pair.ring.infos.tolist(), pair.stock.infos.tolist())


def test_a_her_buffer_over_rows_of_its_own_forgets_them(tmp_path: Path) -> None:
    pair = HerPair()
    adoption = adopt(SimpleNamespace(replay_buffer=pair.ring))
    pair.add(9)
    save(tmp_path / "run", adoption)
    following = HerPair()
    following.add(25)
    adoption = adopt(SimpleNamespace(replay_buffer=following.ring))
    with SnapshotEngine(tmp_path / "run") as engine:
        assert engine.track(**adoption.objects).restore()
    for name, array in vars(pair.stock).items():
        if isinstance(array, np.ndarray) and name != "infos":
            np.testing.assert_array_equal(getattr(following.ring, name), array)


def test_a_her_buffer_of_another_size_is_refused(tmp_path: Path) -> None:
    pair = HerPair()
    adoption = adopt(SimpleNamespace(replay_buffer=pair.ring))
    pair.add(9)
    save(tmp_path / "run", adoption)
    smaller = pair.make(40)
    with SnapshotEngine(tmp_path / "run") as engine:
        engine.track(**adopt(SimpleNamespace(replay_buffer=smaller)).objects)
        with pytest.raises(StateMismatchError, match="buffer_size is 20, the snapshot's is 30"):
            engine.restore()
    assert smaller.buffer_size == 20
    assert smaller.pos == 0


def test_closing_a_her_buffer_truncates_its_open_episode(recwarn: Any) -> None:
    pair = HerPair()
    adoption = adopt(SimpleNamespace(replay_buffer=pair.ring))
    adoption.close_open_episode()
    pair.add(10)
    adoption.close_open_episode()
    assert not recwarn.list
    with pytest.warns(UserWarning, match="truncated"):
        pair.stock.truncate_last_trajectory()
    assert pair.ring.timeouts[9].any()
    np.testing.assert_array_equal(pair.ring.timeouts, pair.stock.timeouts)
    np.testing.assert_array_equal(pair.ring.ep_length, pair.stock.ep_length)


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
