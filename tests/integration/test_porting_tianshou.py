"""Buffers that Tianshou saved come in as their sub-buffers have them, and no pickle is read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from porting_rings import Bomb, lane_rows, ring_like

from pyengine import porting
from pyengine.errors import SourceFormatError, UnportableError
from pyengine.porting import pieces


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 300)


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
    found = lane_rows(ring_like(tmp_path / "run"))
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
            data.Batch(
                {
                    key: np.full(3, value, np.float32)
                    for key in ("observation", "achieved_goal", "desired_goal")
                }
            )
            for value in (step, step + 1)
        )
        flags = {"terminated": False, "truncated": step % 4 == 3}
        buffer.add(data.Batch(obs=seen, act=0, rew=-1.0, obs_next=later, info={}, **flags))
    buffer.sample(64)  # writes other goals over the rows
    assert (buffer.obs["desired_goal"][:, 0] != np.arange(12)).any()
    buffer.save_hdf5(str(tmp_path / "replay.hdf5"))
    told = porting.import_tianshou(tmp_path / "replay.hdf5", tmp_path / "run")
    assert "goals are those that were pursued: relabelling is left out" in told.notes
    (rows,) = lane_rows(ring_like(tmp_path / "run"))
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
    path.write_bytes(pickle.dumps(Bomb(tmp_path / "struck")))
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
