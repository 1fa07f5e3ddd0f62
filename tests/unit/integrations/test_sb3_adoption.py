"""What adopting a replay buffer changes, and what it leaves as it was."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from processes import shm_names
from sb3_pairs import (
    BOX,
    BY_NAME,
    CASES,
    N_STEP,
    STEPS,
    Case,
    arrays_of,
    assert_same_draws,
    make_pair,
)
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common import buffers as stock
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

import pyengine
from pyengine.errors import ConfigError, SchemaError
from pyengine.integrations.sb3.buffers import adopt

each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@each_case
def test_an_adopted_buffer_is_still_one_of_its_class(case):
    pair = make_pair(case)
    assert isinstance(pair.ring, case.kind)
    assert type(pair.ring) is not case.kind
    assert type(pair.ring).__name__ == case.kind.__name__
    assert set(vars(pair.stock)) - {"pos", "full"} <= set(vars(pair.ring))
    assert isinstance(pair.adoption.objects["replay"], pyengine.ReplayBuffer)
    assert pair.adoption.notes == ()


def test_no_memory_is_used_before_rows_exist():
    program = """
import resource, sys
import numpy as np
from types import SimpleNamespace
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from pyengine.integrations.sb3.buffers import adopt

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

images = spaces.Box(0, 255, (4, 84, 84), np.uint8)
buffer = ReplayBuffer(200_000, images, spaces.Discrete(4), "cpu", n_envs=2)
before = peak()
adopt(SimpleNamespace(replay_buffer=buffer))
assert buffer.observations.nbytes == 200_000 * 4 * 84 * 84
assert not any(type(value) is np.ndarray for value in vars(buffer).values())
seen = np.ones((2, 4, 84, 84), np.uint8)
for _ in range(20):
    buffer.add(seen, seen, np.zeros(2, int), np.zeros(2), np.zeros(2, bool), [{}, {}])
buffer.sample(32)
print(peak() - before)
"""
    # 20 steps are 2 MiB of rows; shared memory is given ahead of the head in steps of 32 MiB.
    grown = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert int(grown) < 150


@pytest.mark.parametrize("rows", [0, 5, STEPS, 2 * STEPS + 3])
@each_case
def test_pickled_and_copied_buffers_are_stock(case, rows):
    pair = make_pair(case)
    pair.add(rows)
    saved = io.BytesIO()
    save_to_pkl(saved, pair.ring)
    assert b"pyengine" not in saved.getvalue()
    saved.seek(0)
    made = [load_from_pkl(saved), copy.deepcopy(pair.ring), copy.copy(pair.ring)]
    made += [pickle.loads(pickle.dumps(pair.ring, protocol)) for protocol in (2, 4)]
    for buffer in made:
        assert type(buffer) is case.kind
        assert vars(buffer).keys() == vars(pair.stock).keys()
        assert (buffer.pos, buffer.full) == (pair.stock.pos, pair.stock.full)
        for name, array in arrays_of(pair.stock).items():
            mine = arrays_of(buffer)[name]
            assert type(mine) is np.ndarray
            np.testing.assert_array_equal(mine, array, strict=True)
        buffer.add(*_zeros(case))
    if rows:
        assert_same_draws(pair.stock, pair.ring)


def _zeros(case):
    buffer = case.make(2)
    seen = arrays_of(buffer)
    if isinstance(buffer.obs_shape, dict):
        observation = {key: seen[f"observations/{key}"][0] for key in buffer.obs_shape}
    else:
        observation = seen["observations"][0]
    flags = np.zeros(case.n_envs)
    return observation, observation, buffer.actions[0], flags, flags, [{}] * case.n_envs


@pytest.mark.parametrize("rows", [0, 5, 2 * STEPS + 3])
@each_case
def test_a_released_buffer_is_stock_again(case, rows):
    pair = make_pair(case)
    pair.add(rows)
    ring = pair.adoption.objects["replay"]
    for _ in range(2):
        pair.adoption.release()
    assert type(pair.ring) is case.kind
    assert vars(pair.ring).keys() == vars(pair.stock).keys()
    with pytest.raises(pyengine.errors.ClosedError):
        ring.sample(1)
    pair.add(3)
    assert_same_draws(pair.stock, pair.ring)


def test_a_model_saves_and_loads_its_replay_buffer_as_ever(tmp_path):
    model = _sac(buffer_size=50)
    adoption = adopt(model)
    model.learn(70)
    model.save_replay_buffer(tmp_path / "rows.pkl")
    model.save(tmp_path / "model.zip")
    assert b"pyengine" not in (tmp_path / "model.zip").read_bytes()
    other = SAC.load(tmp_path / "model.zip", env=gym.make("Pendulum-v1"))
    other.load_replay_buffer(tmp_path / "rows.pkl")
    assert type(other.replay_buffer) is stock.ReplayBuffer
    assert_same_draws(other.replay_buffer, model.replay_buffer)
    adoption.check(model)
    model.load_replay_buffer(tmp_path / "rows.pkl")
    with pytest.raises(ConfigError, match="load_replay_buffer"):
        adoption.check(model)


def test_a_buffer_that_holds_rows_is_refused_and_left_alone():
    pair = make_pair(BY_NAME["box-3-envs"])
    pair.add(4)
    with pytest.raises(ConfigError, match="holds 12 rows"):
        adopt(SimpleNamespace(replay_buffer=pair.stock))
    assert type(pair.stock) is stock.ReplayBuffer
    assert_same_draws(pair.stock, pair.ring)


def test_a_buffer_is_adopted_once():
    pair = make_pair(BY_NAME["box"])
    with pytest.raises(ConfigError, match="already"):
        adopt(pair.model)


def test_a_space_that_no_ring_can_hold_leaves_the_buffer_stock():
    buffer = Case("deep", stock.ReplayBuffer, spaces.Box(0, 1, (1,) * 9)).make()
    with pytest.raises(SchemaError, match="8 dimensions"):
        adopt(SimpleNamespace(replay_buffer=buffer))
    assert type(buffer) is stock.ReplayBuffer
    assert isinstance(buffer.observations, np.ndarray)
    assert (buffer.pos, buffer.full) == (0, False)


def test_a_model_without_a_replay_buffer_has_nothing_to_adopt():
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8)
    adoption = adopt(model)
    assert adoption.objects == {}
    adoption.check(model)
    adoption.close_open_episode()
    adoption.release()


def _dqn(**options):
    return DQN(
        "MlpPolicy", "CartPole-v1", buffer_size=90, learning_starts=40, train_freq=2, seed=3,
        target_update_interval=40, policy_kwargs={"net_arch": [16]}, **options,
    )  # fmt: skip


def _sac(buffer_size=80, **options):
    return SAC(
        "MlpPolicy", "Pendulum-v1", buffer_size=buffer_size, learning_starts=40, train_freq=4,
        gradient_steps=1, batch_size=32, policy_kwargs={"net_arch": [16]}, seed=4, **options,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:The last trajectory")
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (_dqn, {}),
        (_dqn, {"n_steps": 3}),
        (_dqn, {"optimize_memory_usage": True, "replay_buffer_kwargs":
                {"handle_timeout_termination": False}}),
        (_sac, {}),
        (_sac, {"n_steps": 2}),
    ],
    ids=["dqn", "dqn-n-step", "dqn-overlap", "sac", "sac-n-step"],
)  # fmt: skip
def test_a_model_trains_as_with_its_own_arrays(make, options):
    kind = N_STEP if "n_steps" in options else stock.ReplayBuffer
    trained = []
    for adopts in (False, True):
        model = make(**options)  # seeds the global generators
        assert type(model.replay_buffer) is kind
        if adopts:
            adopt(model)
        # The second call truncates the open episode where rows overlap.
        model.learn(120)
        model.learn(60)
        trained.append({**model.policy.state_dict(), "next": torch.tensor(np.random.random())})
    theirs, ours = trained
    for name, tensor in theirs.items():
        assert ours[name].numpy().tobytes() == tensor.numpy().tobytes(), name


def test_nothing_of_a_buffer_is_left_in_shared_memory():
    before = shm_names()
    pair = make_pair(Case("box", stock.ReplayBuffer, BOX))
    pair.add(3)
    pair.adoption.release()
    assert shm_names() <= before
