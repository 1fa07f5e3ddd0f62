"""Each thing that a resumed training needs is restored: left out, it ends differently."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tianshou")

from tianshou_models import MODELS
from tianshou_runs import Ended, Start, Stopped, digest, log_begins, log_since, train

import pyengine
from pyengine.errors import PyengineError
from pyengine.integrations.tianshou.training import Training

STOP_AT = {"PPO": 11, "SAC": 110, "DDPG with HER": 53}
"""Optimizer steps before which the base ends: within the second epoch; 27 for the others."""

ITEMS: dict[str, tuple[str, ...]] = {
    "prioritized DQN": (
        "networks", "optimizer.optim", "scheduler.0", "process_rng", "replay",
        "algorithm", "algorithm/values/_iter",
        "trainer", "trainer/epoch", "trainer/update_step", "trainer/steps_of_epoch",
        "trainer/averages", "trainer/logger", "trainer/counters/_env_step",
        "trainer/counters/_best_reward",
        "training_collector", "training_collector/held/_pre_collect_obs_RO",
        "training_collector/held/collect_step", "training_collector/held/collect_episode",
        "test_collector", "test_collector/held/collect_step",
        "training_environment", "test_environment",
        "replay_cursors", "replay_cursors/parts", "replay_cursors/rows", "replay_extras",
        "replay_priorities", "replay_priorities/leaves", "replay_priorities/max",
    ),
    "DQN without obs_next": ("replay_draws", "replay_cursors/parts/0/_insertion_idx"),
    "SAC": (
        "optimizer.policy_optim", "optimizer.critic_optim", "optimizer.critic2_optim",
        "optimizer.alpha", "replay_draws", "training_environment",
        "trainer/counters/_best_score",
    ),
    "DDPG with HER": (
        "algorithm", "replay_draws", "optimizer.policy_optim", "optimizer.critic_optim",
    ),
    "PPO": (
        "algorithm", "replay_rows", "replay_rows/parts/1/_ep_return", "scheduler.0",
        "optimizer.optim",
    ),
}  # fmt: skip
SILENT = {
    "replay_layout": "read before the restore; without it there is no ring to restore into",
    "normalizer": "the environments bring the same statistics; alone it counts after a reset",
    "run": "seeds of resets, and a metric",
    "trainer_attributes": "attributes of trainers derived from the library's",
}


@dataclass(frozen=True)
class Base:
    """A training that an exception has ended, and what an undisturbed one ends with."""

    folder: Path
    undisturbed: Ended
    end: dict[str, str]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Base]:
    """Return the base of a model, made when it is first asked for."""
    found: dict[str, Base] = {}

    def make(name: str) -> Base:
        if name not in found:
            folder = tmp_path_factory.mktemp("base")
            undisturbed = train(name, Start(folder / "undisturbed"))
            end = digest(undisturbed)
            with pytest.raises(Stopped):
                train(name, Start(folder / "stopped", stop_at=STOP_AT.get(name, 27)))
            found[name] = Base(folder / "stopped", undisturbed, end)
        return found[name]

    return make


def newest(folder: Path) -> pyengine.SnapshotInfo:
    return pyengine.open_run(folder / "run").snapshots[-1]


@pytest.mark.parametrize("name", MODELS)
def test_a_training_that_was_stopped_within_an_epoch_goes_on(
    base: Any, tmp_path: Path, name: str
) -> None:
    there = base(name)
    folder = shutil.copytree(there.folder, tmp_path / "stopped")
    trainer = pyengine.load(newest(folder).path, only=["trainer"])["trainer"]
    assert trainer["epoch"] == 1
    assert 0 < trainer["steps_of_epoch"] < 40, "it was taken between epochs: move STOP_AT"
    ended = train(name, Start(folder))
    assert ended.run is not None
    assert ended.run.report
    assert digest(ended) == there.end
    begin = log_begins(ended)
    assert log_since(ended, begin) == log_since(there.undisturbed, begin)


def test_every_component_is_an_item(base: Any) -> None:
    items = {item.partition("/")[0] for listed in ITEMS.values() for item in listed}
    saved = {
        one.name
        for name in MODELS
        for one in newest(base(name).folder).components
        if one.status == "saved"
    }
    assert saved == items | SILENT.keys()


@pytest.mark.parametrize(
    ("name", "item"), [(name, item) for name, listed in ITEMS.items() for item in listed]
)
def test_without_it_the_training_goes_another_way(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, item: str
) -> None:
    there = base(name)
    folder = shutil.copytree(there.folder, tmp_path / "stopped")
    left_out = leave_out(item, monkeypatch)
    try:
        ended = train(name, Start(folder))
    except PyengineError:
        assert left_out, "nothing was left out"
        return
    assert left_out, "nothing was left out"
    begin = log_begins(ended)
    logs = [log_since(one, begin) for one in (ended, there.undisturbed)]
    assert digest(ended) != there.end or logs[0] != logs[1]


def leave_out(item: str, patch: pytest.MonkeyPatch) -> list[str]:
    """Let a restore leave one thing as the script made it; the list is filled once it has."""
    name, *path = item.split("/")
    done: list[str] = []
    restore = Training.restore

    def without(self: Training, **options: Any) -> Any:
        engine = self._engine
        if name == "replay":
            done.append(item)
            plain = engine.restore
            patch.setattr(engine, "restore", lambda **more: plain(**more, replay="skip"))
        else:
            component = engine._tracked.components[name]
            if path:
                _keep_part(component.value, path, done)
            else:
                patch.setattr(component, "apply", lambda decoded: done.append(item))
                patch.setattr(component, "apply_late", lambda decoded: None)
        return restore(self, **options)

    patch.setattr(Training, "restore", without)
    return done


def _keep_part(value: Any, path: list[str], done: list[str]) -> None:
    put = value.set_state

    def set_state(state: Any) -> None:
        live, saved = value.get_state(), state
        for key in path[:-1]:
            at: Any = int(key) if isinstance(saved, list) else key
            live, saved = (live[at] if live is not None else None), saved[at]
        last = path[-1]
        if isinstance(live, dict) and last in live:
            saved[last] = live[last]
        else:
            del saved[last]  # the script has not set it yet
        done.append("/".join(path))
        put(state)

    value.set_state = set_state
