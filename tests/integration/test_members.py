"""Populations: nested names, and one member's state in another's objects."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pyengine
from pyengine import errors


class Member:
    """One of a population: a network, Adam, a schedule, a generator, a ring, hyperparameters."""

    def __init__(self, seed: int, *, width: int = 4) -> None:
        torch.manual_seed(seed)
        self.net = nn.Linear(3, width)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-2 * (seed + 1))
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.rng = np.random.default_rng(seed)
        self.ring = pyengine.ReplayBuffer({"obs": ((3,), "float32")}, 64, seed=seed)
        self.settings = {"gamma": 0.9 + seed / 100, "updates": 0}

    @property
    def parts(self) -> dict[str, Any]:
        return {
            "policy": self.net,
            "train": {"optimizer": self.optimizer, "scheduler": self.scheduler},
            "rng": self.rng,
            "replay": self.ring,
            "settings": self.settings,
        }

    def step(self) -> None:
        obs = self.rng.standard_normal(3, dtype=np.float32)
        self.ring.add(obs=obs)
        loss = self.net(torch.from_numpy(obs)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.settings["updates"] += 1

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "net": {name: value.tolist() for name, value in self.net.state_dict().items()},
                "optimizer": _plain(self.optimizer.state_dict()),
                "scheduler": self.scheduler.state_dict(),
                "rng": self.rng.bit_generator.state,
                "settings": self.settings,
            }
        )

    def rows(self) -> list[list[float]]:
        return np.asarray(self.ring[self.ring.refs()]["obs"]).tolist()  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return repr(value)


NAMES = {
    f"member{i}/{part}"
    for i in range(3)
    for part in ("policy", "train/optimizer", "train/scheduler", "rng", "replay", "settings")
}


@pytest.fixture
def population(tmp_path: Path) -> Iterator[tuple[pyengine.SnapshotEngine, list[Member]]]:
    members = [Member(seed) for seed in range(3)]
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track({f"member{i}": member.parts for i, member in enumerate(members)})
        engine.restore()
        for member in members:
            for _ in range(5):
                member.step()
        yield engine, members


def test_a_population_is_one_snapshot_and_comes_back(
    population: tuple[pyengine.SnapshotEngine, list[Member]],
) -> None:
    engine, members = population
    info = engine.snapshot(4).wait(60)
    assert {one.name for one in info.components} == NAMES | {"process_rng"}
    paths = {record.path for record in info.files}
    assert "model/member1.policy.safetensors" in paths
    assert "buffer/member2.replay/buffer_header.json" in paths
    states, rows = [one.state() for one in members], [one.rows() for one in members]
    run_dir = engine.run_dir
    for member in members:
        member.step()
    engine.close()
    loaded = pyengine.load(run_dir, only=["member1/settings"])["member1/settings"]
    assert loaded == states[1]["settings"]
    again = [Member(seed + 10) for seed in range(3)]
    for replay in ("exact", "latest"):
        with pyengine.SnapshotEngine(run_dir) as engine:
            engine.track(**{f"member{i}": member.parts for i, member in enumerate(again)})
            report = engine.restore(replay=replay)  # type: ignore[arg-type]
            assert report.component("member2/replay").rows == (5 if replay == "exact" else 6)
        assert [one.state() for one in again] == states
        if replay == "exact":
            assert [one.rows() for one in again] == rows
        again = [Member(seed + 20) for seed in range(3)]


def test_one_member_takes_anothers_place(
    population: tuple[pyengine.SnapshotEngine, list[Member]],
) -> None:
    engine, members = population
    info = engine.snapshot(4).wait(60)
    source, others = members[1].state(), [members[0].state(), members[1].state()]
    rows = members[2].rows()
    members[1].step()
    report = engine.restore_member("member1", "member2")
    assert report.snapshot == info
    assert members[2].state() == source
    assert members[2].rows() == rows
    assert members[0].state() == others[0]
    assert members[1].state() != others[1]
    found = {one.name: one.found for one in report.components}
    assert found.pop("member2/replay") == "skipped"
    assert found.keys() == {name for name in NAMES if name.startswith("member2")} - {
        "member2/replay"
    }
    assert set(found.values()) == {"restored"}
    assert str(report).startswith(f"member1 of {info.name} into member2\n")
    members[2].step()
    members[1].settings["updates"] += 0
    engine.snapshot(5).wait(60)


def test_parts_of_a_member_can_be_taken_alone(
    population: tuple[pyengine.SnapshotEngine, list[Member]],
) -> None:
    engine, members = population
    engine.snapshot(4).wait(60)
    before = members[2].state()
    engine.restore_member("member0", "member2", only=["policy", "train/optimizer"])
    after = members[2].state()
    assert after["net"] == members[0].state()["net"]
    assert after["optimizer"] == members[0].state()["optimizer"]
    for kept in ("rng", "settings"):
        assert after[kept] == before[kept]


def test_a_member_of_another_run_can_be_taken(
    population: tuple[pyengine.SnapshotEngine, list[Member]], tmp_path: Path
) -> None:
    engine, members = population
    single = Member(7)
    with pyengine.SnapshotEngine(tmp_path / "other") as other:
        other.track(teacher=single.parts)
        other.restore()
        single.step()
        info = other.snapshot(0).wait(60)
    for path in (tmp_path / "other", info.path):
        members[0].step()
        engine.restore_member("teacher", "member0", path=path)
        assert members[0].state() == single.state()


def test_members_that_do_not_fit_are_refused_by_both_names_and_stay_as_they_are(
    tmp_path: Path,
) -> None:
    members = [Member(0), Member(1, width=5), Member(2)]
    bare = {"policy": members[2].net, "optimizer": members[2].optimizer}
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(a=members[0].parts, b=members[1].parts, c=bare)
        engine.restore()
        with pytest.raises(errors.RunDirectoryError, match="holds no snapshot"):
            engine.restore_member("a", "b")
        engine.snapshot(0).wait(60)
        before = [one.state() for one in members]
        with pytest.raises(errors.StateMismatchError, match=r"'a/policy' of step-.* 'b/policy'"):
            engine.restore_member("a", "b")
        with pytest.raises(errors.ComponentMismatchError) as raised:
            engine.restore_member("a", "c")
        assert raised.value.not_saved == ("a/optimizer",)
        assert raised.value.not_tracked == (
            "c/rng", "c/settings", "c/train/optimizer", "c/train/scheduler",
        )  # fmt: skip
        assert "only=['policy']" in str(raised.value)
        with pytest.raises(errors.ComponentMismatchError) as raised:
            engine.restore_member("a", "b", only=["critic"])
        assert (raised.value.not_saved, raised.value.not_tracked) == (("a/critic",), ("b/critic",))
        with pytest.raises(errors.ConfigError, match="members here: a, b, c"):
            engine.restore_member("a", "d")
        with pytest.raises(errors.ComponentMismatchError, match=r"holds no x/optimizer, x/policy"):
            engine.restore_member("x", "c")
        assert [one.state() for one in members] == before
        engine.snapshot(1).wait(60)


def test_a_dict_of_plain_values_stays_one_component(tmp_path: Path) -> None:
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(counters={"inner": {"steps": 3, "rng": np.random.default_rng()}})
        engine.restore()
        info = engine.snapshot(0).wait(60)
    assert {one.name: one.kind for one in info.components} == {
        "counters": "counters",
        "process_rng": "rng",
    }


def test_names_that_cannot_be_are_refused(tmp_path: Path) -> None:
    net = nn.Linear(1, 1)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        for name in ("a//b", "/a", "a/", "a/.b", "a\\b"):
            with pytest.raises(errors.ConfigError, match="parts between slashes"):
                engine.track({name: net})
        with pytest.raises(errors.ConfigError, match="expected texts, got 3"):
            engine.track(members={3: net})
        with pytest.raises(errors.ConfigError, match="one file"):
            engine.track({"a/b": net, "a.b": nn.Linear(1, 1)})
        with pytest.raises(errors.ConfigError, match="given twice"):
            engine.track({"a": net}, a=nn.Linear(1, 1))
        with pytest.raises(errors.UntrackableError, match="'member/steps': an int"):
            engine.track(member={"policy": net, "steps": 3})
        engine.track({"a/b": net})
        with pytest.raises(errors.ConfigError, match="one file"):
            engine.track({"a.b": nn.Linear(1, 1)})
