"""Minari opens what goes out, and a dataset that is replaced is never lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from porting_rings import fill, lane_rows, make_ring, save

import pyengine
from pyengine import porting
from pyengine.errors import ConfigError, NoSpaceError, TargetExistsError, UnportableError
from pyengine.fs import door
from pyengine.fs.faults import FaultDoor, Rule
from pyengine.porting import pieces

BOX = spaces.Box(-1, 1, (3,), np.float32)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 300)


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


REPLACED, REPLACING = 18, 40


@pytest.fixture
def replace(tmp_path: Path, minari: Any) -> Any:
    """A call that replaces a dataset of 18 steps by one of 40."""
    for name, count in (("old", REPLACED), ("new", REPLACING)):
        ring = make_ring()
        fill(ring, count // 2)
        save(ring, tmp_path / name)
    porting.export_minari(tmp_path / "old", "rows-v0")
    return lambda: porting.export_minari(tmp_path / "new", "rows-v0", force=True)


def _left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "datasets").iterdir())


MOVED_IN = "*/.tmp-g0000-rows-v0/dataset"
ASIDE = ".replaced-rows-v0"


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (Rule("rename", "error", path=MOVED_IN, errno="ENOSPC"), NoSpaceError),
        (Rule("rename", "error", path=MOVED_IN, errno="EIO"), OSError),
        (Rule("rename", "error", path="*/rows-v0", errno="ENOSPC"), NoSpaceError),
        (Rule("fsync", "error", path="*/datasets", errno="EIO"), OSError),
    ],
)
def test_a_dataset_that_cannot_be_replaced_is_there_as_before(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    minari: Any,
    replace: Any,
    rule: Rule,
    kind: Any,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(door, "active", FaultDoor([rule]))
        with pytest.raises(kind):
            replace()
    assert minari.load_dataset("rows-v0").total_steps == REPLACED
    assert _left(tmp_path) == ["rows-v0"]
    replace()
    assert minari.load_dataset("rows-v0").total_steps == REPLACING
    assert _left(tmp_path) == ["rows-v0"]


class _Interrupted(door.Door):
    """The user stops the program behind a rename."""

    def __init__(self, nth: int) -> None:
        self._before = nth

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._before -= 1
        if self._before == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("nth", [1, 2])
def test_an_interrupted_export_puts_the_replaced_dataset_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minari: Any, replace: Any, nth: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(door, "active", _Interrupted(nth))
        with pytest.raises(KeyboardInterrupt):
            replace()
    assert minari.load_dataset("rows-v0").total_steps == REPLACED
    assert _left(tmp_path) == ["rows-v0"]


def test_a_dataset_that_could_not_be_put_back_is_by_the_next_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minari: Any, replace: Any
) -> None:
    rules = [
        Rule("rename", "error", path=MOVED_IN, errno="ENOSPC"),
        Rule("rename", "error", path=f"*/{ASIDE}", nth=2, errno="ENOSPC"),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(door, "active", FaultDoor(rules))
        with pytest.raises(NoSpaceError):
            replace()
    assert _left(tmp_path) == [ASIDE]
    with pytest.raises(TargetExistsError):
        porting.export_minari(tmp_path / "new", "rows-v0")
    assert minari.load_dataset("rows-v0").total_steps == REPLACED
    assert _left(tmp_path) == ["rows-v0"]


@pytest.mark.parametrize(("when", "found"), [("before", REPLACED), ("after", REPLACING)])
def test_a_killed_export_loses_no_dataset(
    tmp_path: Path, minari: Any, replace: Any, when: str, found: int
) -> None:
    plan = [{"op": "rename", "path": MOVED_IN, "action": "kill", "when": when}]
    code = f"""
from pyengine import porting
porting.export_minari({str(tmp_path / "new")!r}, "rows-v0", force=True)
"""
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYENGINE_FAULT_PLAN": json.dumps(plan)},
        timeout=110,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert ASIDE in _left(tmp_path)
    with pytest.raises(TargetExistsError):
        porting.export_minari(tmp_path / "new", "rows-v0")
    assert minari.load_dataset("rows-v0").total_steps == found
    replace()
    assert minari.load_dataset("rows-v0").total_steps == REPLACING
    assert _left(tmp_path) == ["rows-v0"]
