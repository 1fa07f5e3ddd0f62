"""Buffers that the libraries themselves saved come in as they would sample them, and Minari opens
what goes out."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from porting_rings import fill, lane_rows, make_ring, restored, save

import pyengine
from pyengine import porting
from pyengine.errors import (
    ConfigError,
    PickleRefusedError,
    SourceFormatError,
    TargetExistsError,
    UnportableError,
)
from pyengine.porting import pieces, ring_rows

BOX = spaces.Box(-1, 1, (3,), np.float32)
GOALS = spaces.Dict({"observation": BOX, "achieved_goal": BOX, "desired_goal": BOX})


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 300)


def _ring_like(run_dir: Path) -> Any:
    """Return a ring with a run's rows, made by what its snapshot says of it."""
    with ring_rows.open_ring(run_dir) as rows:
        ring = pyengine.ReplayBuffer(
            rows.schema, rows.header.capacity, num_envs=rows.header.num_lanes
        )
    return restored(run_dir, ring)


# Stable-Baselines3


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
    (rows,) = lane_rows(_ring_like(tmp_path / "run"))
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
    for lane, rows in enumerate(lane_rows(_ring_like(tmp_path / "run"))):
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
    (rows,) = lane_rows(_ring_like(tmp_path / "run"))
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


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.mkdir, (self.path,))


def test_no_pickle_is_read_unasked(tmp_path: Path) -> None:
    (tmp_path / "bomb.pkl").write_bytes(pickle.dumps(_Bomb(tmp_path / "struck")))
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


# Tianshou


def _tianshou_buffer(kind: str, steps: int, *arguments: Any, **options: Any) -> Any:
    data = pytest.importorskip("tianshou.data")
    buffer = getattr(data, kind)(*arguments, **options)
    lanes = getattr(buffer, "buffer_num", 1)
    rng = np.random.default_rng(0)
    # A lane of its own length: environments are not all stepped each time.
    for step in range(steps):
        ids = np.array([lane for lane in range(lanes) if (step + lane) % 3 or lane == 0])
        batch = data.Batch(
            obs=data.Batch(
                agent=rng.random((len(ids), 3), dtype=np.float32),
                goal=rng.integers(0, 255, (len(ids), 2), dtype=np.uint8),
            ),
            act=rng.integers(0, 4, len(ids)),
            rew=rng.random(len(ids)),
            terminated=rng.random(len(ids)) < 0.2,
            truncated=rng.random(len(ids)) < 0.1,
            obs_next=data.Batch(
                agent=rng.random((len(ids), 3), dtype=np.float32),
                goal=rng.integers(0, 255, (len(ids), 2), dtype=np.uint8),
            ),
            info=data.Batch(seen=np.arange(len(ids))),
        )
        if hasattr(buffer, "buffer_num"):
            buffer.add(batch, buffer_ids=ids)
        else:
            buffer.add(batch[0])
    return buffer


@pytest.mark.parametrize("steps", [1, 7, 33])
@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize(
    ("kind", "arguments"), [("ReplayBuffer", (10,)), ("VectorReplayBuffer", (30, 3))]
)
def test_rows_of_tianshou_are_those_of_its_sub_buffers(
    tmp_path: Path, kind: str, arguments: Any, compression: str | None, steps: int
) -> None:
    buffer = _tianshou_buffer(kind, steps, *arguments)
    buffer.save_hdf5(str(tmp_path / "replay.hdf5"), compression=compression)
    told = porting.import_tianshou(tmp_path / "replay.hdf5", tmp_path / "run")
    assert told.rows == len(buffer)
    assert told.notes == ("left out: info",)
    subs = getattr(buffer, "buffers", [buffer])
    found = lane_rows(_ring_like(tmp_path / "run"))
    for sub, rows in zip(subs, found, strict=True):
        batch = sub[sub.sample_indices(0)]
        assert len(rows["reward"]) == len(sub)
        for part in ("agent", "goal") if len(sub) else ():
            assert (rows[f"obs/{part}"] == batch.obs[part]).all()
            assert (rows[f"next_obs/{part}"] == batch.obs_next[part]).all()
        for name, key in (("action", "act"), ("reward", "rew")) if len(sub) else ():
            assert rows[name].dtype == batch[key].dtype
            assert (rows[name] == batch[key]).all()
        if len(sub):
            assert (rows["terminated"] == batch.terminated).all()
            assert (rows["truncated"] == batch.truncated).all()
            assert (rows["@starts"][1:] == batch.done[:-1]).all()


def test_prioritised_rows_of_tianshou_come_without_priorities_alone(tmp_path: Path) -> None:
    buffer = _tianshou_buffer("PrioritizedReplayBuffer", 23, 10, alpha=0.6, beta=0.4)
    buffer.save_hdf5(str(tmp_path / "replay.hdf5"))
    with pytest.raises(UnportableError, match="--without-priorities"):
        porting.import_tianshou(tmp_path / "replay.hdf5", tmp_path / "run")
    told = porting.import_tianshou(
        tmp_path / "replay.hdf5", tmp_path / "run", without_priorities=True
    )
    assert told.rows == 10
    assert "priorities are left out" in told.notes


def _no_reward(achieved: Any, desired: Any) -> Any:
    return np.zeros(len(achieved))


def test_hindsight_rows_of_tianshou_have_the_goals_that_were_pursued(tmp_path: Path) -> None:
    data = pytest.importorskip("tianshou.data")
    buffer = data.HERReplayBuffer(12, compute_reward_fn=_no_reward, horizon=4, future_k=8)
    for step in range(12):
        seen, later = (
            data.Batch({key: np.full(3, value, np.float32) for key in GOALS})
            for value in (step, step + 1)
        )
        flags = {"terminated": False, "truncated": step % 4 == 3}
        buffer.add(data.Batch(obs=seen, act=0, rew=-1.0, obs_next=later, info={}, **flags))
    buffer.sample(64)  # writes other goals over the rows
    assert (buffer.obs["desired_goal"][:, 0] != np.arange(12)).any()
    buffer.save_hdf5(str(tmp_path / "replay.hdf5"))
    told = porting.import_tianshou(tmp_path / "replay.hdf5", tmp_path / "run")
    assert "goals are those that were pursued: relabelling is left out" in told.notes
    (rows,) = lane_rows(_ring_like(tmp_path / "run"))
    assert (rows["obs/desired_goal"][:, 0] == np.arange(12)).all()
    assert (rows["reward"] == -1).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"stack_num": 2}, "stack_num=2"), ({"ignore_obs_next": True}, "no obs_next")],
)
def test_what_tianshou_makes_when_it_samples_is_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    _tianshou_buffer("ReplayBuffer", 7, 10, **options).save_hdf5(str(tmp_path / "replay.hdf5"))
    with pytest.raises(UnportableError, match=words):
        porting.import_tianshou(tmp_path / "replay.hdf5", tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["replay.hdf5"]


def test_hostile_hdf5_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path, run = tmp_path / "replay.hdf5", tmp_path / "run"

    def refused(words: str, kind: Any = SourceFormatError) -> None:
        with pytest.raises(kind, match=words):
            porting.import_tianshou(path, run)
        assert not run.exists()

    def saved() -> Any:
        _tianshou_buffer("VectorReplayBuffer", 23, 30, 3).save_hdf5(str(path))
        return h5py.File(path, "r+")

    path.write_bytes(b"")
    refused("no HDF5 file")
    path.write_bytes(pickle.dumps(_Bomb(tmp_path / "struck")))
    refused("no HDF5 file")
    saved().close()
    path.write_bytes(path.read_bytes()[:5000])
    refused("cannot be read as HDF5")
    with h5py.File(path, "w") as file:
        file["data"] = np.zeros(3)
    refused("was not written by a Tianshou buffer's save_hdf5")
    with saved() as file:
        del file["_meta/act"]
        file["_meta/act"] = np.zeros(29, int)
    refused(r"'action' has shape \(29,\)")
    with saved() as file:
        file["last_index"][...] = 1000
    refused("last_index leaves the buffer")
    with saved() as file:
        file["_lengths"][...] = [10, 11, 10]
    refused("sub-buffers make no sense")
    with saved() as file:
        del file["_meta/obs/agent"]
        file["_meta/obs/agent"] = h5py.ExternalLink("/etc/passwd", "/")
    refused("lies in another file")
    with saved() as file:
        del file["_meta/rew"]
        file["_meta/rew"] = np.zeros((30,), "c8")
    refused("'reward' is complex64", UnportableError)
    path.unlink()
    path.mkdir()
    refused("is a directory")
    assert not (tmp_path / "struck").exists()


# Minari


@pytest.fixture
def minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("minari")


def _episodes(ring: Any) -> list[tuple[int, int, int]]:
    """Return lane, first and last row of each episode, as the rows of a ring tell of them."""
    found = []
    for lane, rows in enumerate(lane_rows(ring)):
        begins = np.flatnonzero(rows["@starts"]).tolist()
        found += [
            (lane, begin, end)
            for begin, end in zip(begins, [*begins[1:], len(rows["@starts"])], strict=True)
        ]
    return found


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("steps", [9, 200])
def test_minari_opens_the_episodes(tmp_path: Path, minari: Any, stacked: bool, steps: int) -> None:
    ring = make_ring(stacked=stacked)
    fill(ring, steps)
    save(ring, tmp_path / "run")
    told = porting.export_minari(tmp_path / "run", "test/rows-v0")
    data = minari.load_dataset("test/rows-v0")
    wanted, lanes = _episodes(ring), lane_rows(ring)
    assert data.total_episodes == told.episodes == len(wanted)
    assert data.total_steps == told.rows == len(ring)
    assert list(minari.list_local_datasets()) == ["test/rows-v0"]
    cut_short = 0
    for episode, (lane, begin, end) in zip(data.iterate_episodes(), wanted, strict=True):
        rows = {name: values[begin:end] for name, values in lanes[lane].items()}
        for part in ("frames", "image"):
            seen = episode.observations[part]
            assert seen[:-1].tobytes() == rows[f"obs/{part}"].tobytes()
            assert seen[1:].tobytes() == rows[f"next_obs/{part}"].tobytes()
        assert (episode.actions == rows["action"]).all()
        assert (episode.rewards == rows["reward"]).all()
        assert (episode.terminations == rows["terminated"]).all()
        assert (episode.truncations[:-1] == rows["truncated"][:-1]).all()
        is_open = not (rows["terminated"][-1] or rows["truncated"][-1])
        assert episode.truncations[-1] == rows["truncated"][-1] or is_open
        cut_short += is_open
    assert cut_short > 0
    assert f"{cut_short} episodes that did not end are marked truncated" in told.notes
    assert "left out: flag, half" in told.notes
    lengths = [one["total_steps"] for one in data.storage.get_episode_metadata(range(len(wanted)))]
    assert lengths == [end - begin for _, begin, end in wanted]


def test_a_minari_dataset_has_its_environment(tmp_path: Path, minari: Any) -> None:
    env = gymnasium.make("CartPole-v1")
    ring = pyengine.ReplayBuffer(pyengine.Schema.from_env(env), 100)
    obs, _ = env.reset(seed=0)
    for _ in range(60):
        action = env.action_space.sample()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        ring.add(
            obs=obs,
            action=action,
            reward=reward,
            next_obs=next_obs,
            terminated=terminated,
            truncated=truncated,
        )
        obs = env.reset()[0] if terminated or truncated else next_obs
    save(ring, tmp_path / "run")
    porting.export_minari(tmp_path / "run", "cartpole-v3", env="CartPole-v1")
    data = minari.load_dataset("cartpole-v3")
    assert data.action_space == spaces.Discrete(2)
    assert data.recover_environment().spec.id == "CartPole-v1"
    with pytest.raises(TargetExistsError, match="--force"):
        porting.export_minari(tmp_path / "run", "cartpole-v3")
    porting.export_minari(tmp_path / "run", "cartpole-v3", force=True)
    assert isinstance(minari.load_dataset("cartpole-v3").action_space, spaces.Box)
    for options, words, kind in (
        ({"env": "Acrobot-v1"}, r"'obs' has shape \(4,\), the space \(6,\)", UnportableError),
        ({"env": "Nothing-v1"}, "Nothing-v1", ConfigError),
    ):
        with pytest.raises(kind, match=words):
            porting.export_minari(tmp_path / "run", "cartpole-v4", **options)
    with pytest.raises(ConfigError, match="Malformed dataset ID"):
        porting.export_minari(tmp_path / "run", "../elsewhere")
    assert [path.name for path in (tmp_path / "datasets").iterdir()] == ["cartpole-v3"]


def test_rows_that_are_no_episodes_are_refused(tmp_path: Path, minari: Any) -> None:
    ring = pyengine.ReplayBuffer({"x": "float32"}, 8)
    ring.add(x=1.0)
    save(ring, tmp_path / "run")
    with pytest.raises(UnportableError, match="the ring has the fields x; Minari takes"):
        porting.export_minari(tmp_path / "run", "rows-v0")
    schema = pyengine.Schema.from_spaces(BOX, spaces.Discrete(2))
    ring = pyengine.ReplayBuffer(schema, 8)
    for value in range(3):
        obs = np.full(3, value, np.float32)
        flags = {"terminated": False, "truncated": False}
        ring.add(obs=obs, action=0, reward=0.0, next_obs=obs + 2, **flags)
    save(ring, tmp_path / "other")
    with pytest.raises(UnportableError, match="'next_obs' is not 'obs' of the row behind it"):
        porting.export_minari(tmp_path / "other", "rows-v0")
    assert list((tmp_path / "datasets").iterdir()) == []


def test_rings_of_the_adapters_go_out(tmp_path: Path, minari: Any) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    from pyengine.integrations.sb3 import SnapshotCallback

    model = sb3.DQN("MlpPolicy", "CartPole-v1", buffer_size=200, learning_starts=1000, seed=0)
    model.learn(150, callback=SnapshotCallback(tmp_path / "run", every_steps=1000))
    told = porting.export_minari(tmp_path / "run", "sb3-v0", env="CartPole-v1")
    count = model.replay_buffer.size()
    assert told.rows == count
    data = minari.load_dataset("sb3-v0")
    episodes = list(data.iterate_episodes())
    seen = np.concatenate([one.observations[:-1] for one in episodes])
    assert (seen == model.replay_buffer.observations[:count, 0]).all()
    done = np.concatenate([one.terminations | one.truncations for one in episodes])
    assert (done[:-1] == (model.replay_buffer.dones[: count - 1, 0] != 0)).all()
