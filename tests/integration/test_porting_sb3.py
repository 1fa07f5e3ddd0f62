"""Buffers that Stable-Baselines3 saved come in as it would sample them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from porting_rings import Bomb, lane_rows, restored, ring_like

import pyengine
from pyengine import porting
from pyengine.errors import PickleRefusedError, SourceFormatError, UnportableError
from pyengine.porting import pieces

BOX = spaces.Box(-1, 1, (3,), np.float32)
GOALS = spaces.Dict({"observation": BOX, "achieved_goal": BOX, "desired_goal": BOX})


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 300)


def _sb3_buffer(
    kind: str, steps: int, *, size: int = 10, envs: int = 1, action: Any = None, **options: Any
) -> Any:
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    space = spaces.Discrete(4) if action is None else action
    observed = GOALS if kind == "DictReplayBuffer" else BOX
    buffer = getattr(buffers, kind)(size, observed, space, device="cpu", n_envs=envs, **options)
    rng = np.random.default_rng(0)

    def observe() -> Any:
        if observed is BOX:
            return rng.random((envs, 3), dtype=np.float32)
        return {key: rng.random((envs, 3), dtype=np.float32) for key in GOALS}

    obs = observe()
    for step in range(steps):
        later = observe()
        done = np.full(envs, step % 5 == 4)
        infos = [{"TimeLimit.truncated": bool(step % 10 == 9)} for _ in range(envs)]
        acted = np.stack([np.asarray(space.sample()) for _ in range(envs)])
        buffer.add(obs, later, acted, rng.random(envs, dtype=np.float32), done, infos)
        obs = later
    return buffer


def _sb3_file(buffer: Any, path: Path) -> Path:
    save_util = pytest.importorskip("stable_baselines3.common.save_util")
    save_util.save_to_pkl(path, buffer)
    return path


@pytest.mark.parametrize("steps", [7, 23])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ReplayBuffer", {}),
        ("ReplayBuffer", {"action": spaces.Box(-2, 2, (2, 2), np.float64)}),
        ("ReplayBuffer", {"action": spaces.MultiDiscrete([3, 4])}),
        (
            "ReplayBuffer",
            {"optimize_memory_usage": True, "handle_timeout_termination": False},
        ),
        ("DictReplayBuffer", {}),
        ("NStepReplayBuffer", {"n_steps": 1, "gamma": 0.9}),
    ],
)
def test_rows_of_stable_baselines3_are_those_it_samples(
    tmp_path: Path, kind: str, options: dict[str, Any], steps: int
) -> None:
    buffer = _sb3_buffer(kind, steps, **options)
    path = _sb3_file(buffer, tmp_path / "replay.pkl")
    told = porting.import_sb3(path, tmp_path / "run", allow_pickle=True)
    order = [step % 10 for step in range(steps)][-10:]
    if buffer.optimize_memory_usage and steps > 10:
        order = order[1:]  # the library does not sample the oldest one
    assert (told.rows, told.lanes) == (len(order), 1)
    sampled = buffer._get_samples(np.array(order))
    (rows,) = lane_rows(ring_like(tmp_path / "run"))
    count = len(order)
    if kind == "DictReplayBuffer":
        for key in GOALS:
            assert (rows[f"obs/{key}"] == sampled.observations[key].numpy()).all()
            assert (rows[f"next_obs/{key}"] == sampled.next_observations[key].numpy()).all()
    else:
        assert (rows["obs"] == sampled.observations.numpy()).all()
        assert (rows["next_obs"] == sampled.next_observations.numpy()).all()
    assert rows["action"].shape[1:] == buffer.action_space.shape
    assert (rows["action"].reshape(count, -1) == sampled.actions.numpy()).all()
    assert (rows["reward"] == sampled.rewards.numpy().ravel()).all()
    assert (rows["terminated"] == (sampled.dones.numpy().ravel() != 0)).all()
    done = buffer.dones[order, 0] != 0
    assert ((rows["terminated"] | rows["truncated"]) == done).all()
    assert (rows["@starts"][1:] == done[:-1]).all()


def test_environments_of_stable_baselines3_are_lanes(tmp_path: Path) -> None:
    buffer = _sb3_buffer("ReplayBuffer", 23, size=30, envs=3)
    path = _sb3_file(buffer, tmp_path / "replay.pkl")
    porting.import_sb3(path, tmp_path / "run", allow_pickle=True)
    for lane, rows in enumerate(lane_rows(ring_like(tmp_path / "run"))):
        order = np.arange(13, 23) % 10
        assert (rows["obs"] == buffer.observations[order, lane]).all()
        assert (rows["reward"] == buffer.rewards[order, lane]).all()
    other = pyengine.ReplayBuffer(
        pyengine.Schema.from_spaces(BOX, spaces.Discrete(4)), 30, num_envs=3
    )
    porting.import_sb3(path, into=other, allow_pickle=True)
    assert len(other) == 30


def test_hindsight_rows_of_stable_baselines3_have_the_goals_that_were_pursued(
    tmp_path: Path,
) -> None:
    her = pytest.importorskip("stable_baselines3.her.her_replay_buffer")
    action = spaces.Discrete(2)
    buffer = her.HerReplayBuffer(10, GOALS, action, env=None, device="cpu")
    rng = np.random.default_rng(0)
    for step in range(13):
        seen, later = ({key: rng.random((1, 3), np.float32) for key in GOALS} for _ in range(2))
        done = np.array([step % 4 == 3])
        buffer.add(seen, later, np.array([[step % 2]]), np.zeros(1), done, [{}])
    told = porting.import_sb3(
        _sb3_file(buffer, tmp_path / "replay.pkl"), tmp_path / "run", allow_pickle=True
    )
    assert any("relabelling" in note for note in told.notes)
    (rows,) = lane_rows(ring_like(tmp_path / "run"))
    order = np.arange(3, 13) % 10
    assert (rows["obs/desired_goal"] == buffer.observations["desired_goal"][order, 0]).all()


def test_what_a_model_saved_comes_in(tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.DQN("MlpPolicy", "CartPole-v1", buffer_size=100, learning_starts=1000, seed=0)
    model.learn(150)
    model.save_replay_buffer(tmp_path / "replay.pkl")
    told = porting.import_sb3(tmp_path / "replay.pkl", tmp_path / "run", allow_pickle=True)
    assert told.rows == 100
    schema = pyengine.Schema.from_env(gymnasium.make("CartPole-v1"))
    ring = restored(tmp_path / "run", pyengine.ReplayBuffer(schema, 100))
    assert ring.sample(32)["obs"].shape == (32, 4)


def test_no_pickle_is_read_unasked(tmp_path: Path) -> None:
    (tmp_path / "bomb.pkl").write_bytes(pickle.dumps(Bomb(tmp_path / "struck")))
    with pytest.raises(PickleRefusedError, match="runs code of whoever wrote it"):
        porting.import_sb3(tmp_path / "bomb.pkl", tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["bomb.pkl"]


def test_pickles_of_something_else_are_refused(tmp_path: Path) -> None:
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    rollout = buffers.RolloutBuffer(8, BOX, spaces.Discrete(2), device="cpu")
    for name, saved in (("rollout", rollout), ("list", [1, 2])):
        path = tmp_path / f"{name}.pkl"
        path.write_bytes(pickle.dumps(saved))
        with pytest.raises(UnportableError, match="DictReplayBuffer"):
            porting.import_sb3(path, tmp_path / "run", allow_pickle=True)
    whole = pickle.dumps(rollout)
    gone = b"cno_such_module\nThing\n."
    for data in (whole[: len(whole) // 2], b"", b"PK", gone):
        path.write_bytes(data)
        with pytest.raises(SourceFormatError, match="cannot be read as a pickle"):
            porting.import_sb3(path, tmp_path / "run", allow_pickle=True)
    with pytest.raises(SourceFormatError, match="is a directory"):
        porting.import_sb3(tmp_path, tmp_path / "run", allow_pickle=True)
    with pytest.raises(UnportableError, match="holds no rows"):
        porting.import_sb3(
            _sb3_file(_sb3_buffer("ReplayBuffer", 0), path), tmp_path / "run", allow_pickle=True
        )
    assert not (tmp_path / "run").exists()
